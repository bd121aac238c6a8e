#include "planner/profile.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/text.h"
#include "models/fields.h"
#include "models/schema.h"

namespace planner {

constexpr models::FieldRules kRate{.required = true, .least = 1e-300}, kSeconds{.required = true}, kPart{.most = 1},
    kBytesOfMemory{.most = 1e18};

void each_field(Profile& profile, auto& visit) {
  visit("name", profile.name, {.required = true});
  visit("ranks", profile.ranks);
  visit("threads", profile.threads);
  visit("copy_bandwidth", profile.copy_bandwidth, kRate);
  visit("update_bandwidth", profile.update_bandwidth, kRate);
  visit("collective_bandwidth", profile.collective_bandwidth);
  visit("collective_seconds", profile.collective_seconds, kSeconds);
  visit("network_bandwidth", profile.network_bandwidth, kRate);
  visit("network_seconds", profile.network_seconds);
  visit("disk_bandwidth", profile.disk_bandwidth, kRate);
  visit("device_memory", profile.device_memory, kBytesOfMemory);
  visit("host_link_bandwidth", profile.host_link_bandwidth);
  visit("pinned_memory", profile.pinned_memory, kBytesOfMemory);
  visit("host_bandwidth", profile.host_bandwidth);
  visit("disk_read_bandwidth", profile.disk_read_bandwidth);
  visit("disk_write_bandwidth", profile.disk_write_bandwidth);
  visit("overlap", profile.overlap, kPart);
  visit("estimated", profile.estimated);
}

void each_field(Pace& pace, auto& visit) {
  visit("matrix_flops", pace.matrix_flops, kRate);
  visit("matrix_bandwidth", pace.matrix_bandwidth, kRate);
  visit("attention_flops", pace.attention_flops, kRate);
  visit("sweep_bandwidth", pace.sweep_bandwidth, kRate);
  visit("operator_seconds", pace.operator_seconds, kSeconds);
  visit("waiting", pace.waiting, kPart);
  visit("peak_flops", pace.peak_flops);
}

namespace {

constexpr std::array<std::pair<const char*, Pace Profile::*>, 4> kPaces{
    {{"fp32", &Profile::fp32}, {"bf16", &Profile::bf16}, {"fp16", &Profile::fp16}, {"fp8", &Profile::fp8}}};

// Usual parts of the vendors' peaks.
constexpr double kOfMemory = 0.8;     // of the memory's bandwidth
constexpr double kOfLinks = 0.75;     // of NVLink, one direction
constexpr double kOfNetwork = 0.85;   // of the network card
constexpr double kOfHostLinks = 0.8;  // of PCIe x16, one direction
constexpr double kOfHosts = 0.8;      // of their memory's bandwidth
constexpr double kOfProducts = 0.55;  // of dense products, over whole layers
constexpr double kOverlap = 0.8;      // of computing has collectives beside it

struct Peaks {
  const char* name;
  double memory;   // bytes/s
  double links;    // bytes/s
  double network;  // bytes/s: a card of 200 or 400 Gbit/s for each device
  double fp32, half, fp8;
  double device_memory;  // bytes
  double host_links;     // bytes/s: PCIe 4 or 5
  double host_memory;    // bytes/s: an eighth of two sockets' of eight channels of DDR4-3200 or DDR5-4800
};

// An eighth of half of 2 TB, which hosts of eight such devices have.
constexpr double kPinned = 1e12 / 8;

// A disk of 3.84 TB on PCIe 4 for each device, such as Samsung's PM9A3: what its data sheet says.
constexpr double kDiskRead = 6.8e9, kDiskWrite = 4e9;

// Data sheets: A100 SXM 80 GB, H100 SXM, H200. The A100 has no FP8: it computes so in bf16.
constexpr std::array<Peaks, 3> kPeaks{{{"a100", 2.039e12, 300e9, 25e9, 19.5e12, 312e12, 312e12, 80e9, 32e9, 51.2e9},
                                       {"h100", 3.35e12, 450e9, 50e9, 67e12, 989e12, 1979e12, 80e9, 64e9, 76.8e9},
                                       {"h200", 4.8e12, 450e9, 50e9, 67e12, 989e12, 1979e12, 141e9, 64e9, 76.8e9}}};

Pace usual_pace(double flops, double memory) {
  const double sweeps = kOfMemory * memory;
  return {.matrix_flops = kOfProducts * flops,
          .matrix_bandwidth = sweeps,
          .attention_flops = kOfProducts * flops,
          .sweep_bandwidth = sweeps,
          .operator_seconds = 5e-6,
          .peak_flops = flops};
}

Profile usual(const Peaks& peaks) {
  return {.name = peaks.name,
          .fp32 = usual_pace(peaks.fp32, peaks.memory),
          .bf16 = usual_pace(peaks.half, peaks.memory),
          .fp16 = usual_pace(peaks.half, peaks.memory),
          .fp8 = usual_pace(peaks.fp8, peaks.memory),
          .copy_bandwidth = kOfMemory * peaks.memory,
          .update_bandwidth = kOfMemory * peaks.memory,
          .collective_bandwidth = kOfLinks * peaks.links,
          .collective_seconds = 2e-5,
          .network_bandwidth = kOfNetwork * peaks.network,
          .disk_bandwidth = 5e9,
          .device_memory = peaks.device_memory,
          .host_link_bandwidth = kOfHostLinks * peaks.host_links,
          .pinned_memory = kPinned,
          .host_bandwidth = kOfHosts * peaks.host_memory,
          .disk_read_bandwidth = kDiskRead,
          .disk_write_bandwidth = kDiskWrite,
          .overlap = kOverlap,
          .estimated = true};
}

Profile read_profile(models::Json json, const std::string& source) {
  models::take_stamp(json, models::kProfile, source);
  Profile paces;
  for (const auto& [key, member] : kPaces)
    if (json.contains(key)) {
      paces.*member = models::read_fields<Pace>(json[key], source + ": \"" + key + "\"");
      json.erase(key);
    }
  Profile profile = models::read_fields<Profile>(json, source);
  for (const auto& [key, member] : kPaces) profile.*member = paces.*member;
  if (profile.within_host() < kRate.least)
    models::fields_detail::fail({source, "collective_bandwidth"}, "is missing or 0",
                                "add it, or host_link_bandwidth where devices of a host have no links between them");
  return profile;
}

}  // namespace

Pace Profile::*pace_of(zero::Precision precision) {
  switch (precision) {
    case zero::Precision::fp32: return &Profile::fp32;
    case zero::Precision::fp16: return &Profile::fp16;
    case zero::Precision::fp8: return &Profile::fp8;
    default: return &Profile::bf16;
  }
}

bool Profile::knows(zero::Precision precision) const {
  return (this->*pace_of(precision)).matrix_flops > 0;
}

const Pace& Profile::pace(zero::Precision precision) const {
  if (!knows(precision))
    throw zero::ConfigError("the profile " + zero::in_quotes(name) + " does not say how fast " +
                                std::string(zero::name(precision)) + " is computed in",
                            "measure it: zero bench profile --precisions ...");
  return this->*pace_of(precision);
}

std::vector<std::string_view> given_profiles() {
  std::vector<std::string_view> names;
  for (const Peaks& peaks : kPeaks) names.emplace_back(peaks.name);
  return names;
}

Profile profile_named(const std::string& name_or_path) {
  const auto given = std::ranges::find_if(kPeaks, [&](const Peaks& peaks) { return name_or_path == peaks.name; });
  if (given != kPeaks.end()) return usual(*given);
  return read_profile(models::json_file(name_or_path, "give a profile's file, or a100, h100 or h200"), name_or_path);
}

std::string usual_profile_path(const std::string& kind) {
  const auto variable = [](const char* name) {
    return std::filesystem::path(std::getenv(name) ? std::getenv(name) : "");
  };
  const std::filesystem::path cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  const std::filesystem::path folder = !cache.empty() ? cache : !home.empty() ? home / ".cache" : ".";
  return folder / "zero" / (kind == "cpu" ? "profile.json" : "profile-" + kind + ".json");
}

std::string to_json(const Profile& profile) {
  models::Json json = models::stamped(models::kProfile);
  json.update(models::write_fields(profile));
  for (const auto& [key, member] : kPaces)
    if ((profile.*member).matrix_flops > 0) json[key] = models::write_fields(profile.*member);
  return json.dump(2) + "\n";
}

Profile profile_from_json(const std::string& text, const std::string& source) {
  return read_profile(models::json_object(text, source), source);
}

}  // namespace planner

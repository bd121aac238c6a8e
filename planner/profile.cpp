#include "planner/profile.h"

#include <algorithm>
#include <array>

#include "planner/fields.h"

namespace planner {
namespace {

constexpr double kPositive = 1e-300;

const std::array<Field<Profile>, 10> kFields{
    {{.key = "name", .member = &Profile::name, .required = true},
     {.key = "copy_bandwidth", .member = &Profile::copy_bandwidth, .required = true, .least = kPositive},
     {.key = "collective_bandwidth", .member = &Profile::collective_bandwidth, .required = true, .least = kPositive},
     {.key = "network_bandwidth", .member = &Profile::network_bandwidth, .required = true, .least = kPositive},
     {.key = "matrix_flops_fp32", .member = &Profile::matrix_flops_fp32, .required = true, .least = kPositive},
     {.key = "matrix_flops_bf16", .member = &Profile::matrix_flops_bf16, .required = true, .least = kPositive},
     {.key = "matrix_flops_fp16", .member = &Profile::matrix_flops_fp16, .required = true, .least = kPositive},
     {.key = "matrix_flops_fp8", .member = &Profile::matrix_flops_fp8, .required = true, .least = kPositive},
     {.key = "disk_bandwidth", .member = &Profile::disk_bandwidth, .required = true, .least = kPositive},
     {.key = "operator_seconds", .member = &Profile::operator_seconds, .required = true}}};

// Usual parts of the vendors' peaks.
constexpr double kOfMemory = 0.8;     // of the memory's bandwidth
constexpr double kOfLinks = 0.75;     // of NVLink, one direction
constexpr double kOfNetwork = 0.85;   // of the network card
constexpr double kOfProducts = 0.55;  // of dense products, over whole layers

struct Peaks {
  const char* name;
  double memory;   // bytes/s
  double links;    // bytes/s
  double network;  // bytes/s: a card of 200 or 400 Gbit/s for each device
  double fp32, half, fp8;
};

// Data sheets: A100 SXM 80 GB, H100 SXM, H200. The A100 has no FP8: it computes so in bf16.
constexpr std::array<Peaks, 3> kPeaks{{{"a100", 2.039e12, 300e9, 25e9, 19.5e12, 312e12, 312e12},
                                       {"h100", 3.35e12, 450e9, 50e9, 67e12, 989e12, 1979e12},
                                       {"h200", 4.8e12, 450e9, 50e9, 67e12, 989e12, 1979e12}}};

Profile usual(const Peaks& peaks) {
  return {.name = peaks.name,
          .copy_bandwidth = kOfMemory * peaks.memory,
          .collective_bandwidth = kOfLinks * peaks.links,
          .network_bandwidth = kOfNetwork * peaks.network,
          .matrix_flops_fp32 = kOfProducts * peaks.fp32,
          .matrix_flops_bf16 = kOfProducts * peaks.half,
          .matrix_flops_fp16 = kOfProducts * peaks.half,
          .matrix_flops_fp8 = kOfProducts * peaks.fp8,
          .disk_bandwidth = 5e9,
          .operator_seconds = 5e-6};
}

}  // namespace

double Profile::matrix_flops(zero::Precision precision) const {
  switch (precision) {
    case zero::Precision::fp32: return matrix_flops_fp32;
    case zero::Precision::fp16: return matrix_flops_fp16;
    case zero::Precision::fp8: return matrix_flops_fp8;
    default: return matrix_flops_bf16;
  }
}

std::vector<std::string_view> given_profiles() {
  std::vector<std::string_view> names;
  for (const Peaks& peaks : kPeaks) names.emplace_back(peaks.name);
  return names;
}

Profile profile_named(const std::string& name_or_path) {
  const auto given = std::ranges::find_if(kPeaks, [&](const Peaks& peaks) { return name_or_path == peaks.name; });
  if (given != kPeaks.end()) return usual(*given);
  const Json json = read_json(name_or_path, "give a profile's file, or a100, h100 or h200");
  return read_fields<Profile>(json, kFields, name_or_path);
}

std::string to_json(const Profile& profile) {
  return write_fields<Profile>(profile, kFields).dump(2) + "\n";
}

Profile profile_from_json(const std::string& text, const std::string& source) {
  return read_fields<Profile>(Json::parse(text, nullptr, false), kFields, source);
}

}  // namespace planner

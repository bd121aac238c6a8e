#include "cli/options/places.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/text.h"
#include "cli/files.h"
#include "cli/options/device_option.h"
#include "models/llama_config.h"
#include "planner/profile.h"

namespace cli {
namespace {

namespace fs = std::filesystem;
using Use = Place::Use;

fs::path location_of(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::absolute(target_of(path), error);
  const fs::path location = fs::weakly_canonical(target, error);
  return error ? target.lexically_normal() : location;
}

// The file that a path means, by whatever name; none for what can be shared: pipes, terminals, /dev/null.
std::optional<std::string> identity_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return location_of(path).string();
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return {};
  return std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
}

bool lies_in(const std::string& path, const std::string& folder) {
  const fs::path inner = location_of(path), outer = location_of(folder);
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

std::string both(const Place& a, const Place& b) {
  return std::string(a.option) + " and " + b.option;
}

void check_apart(const Place& a, const Place& b) {
  const bool to_output = is_standard_output(a.path) && is_standard_output(b.path);
  if (to_output && a.use == Use::writes && b.use == Use::writes)
    throw UsageError(both(a, b) + " cannot both be standard output");
  const auto identity = identity_of(a.path);
  if (identity && identity == identity_of(b.path))
    throw UsageError(both(a, b) + " are the same file, " + zero::in_quotes(b.path));
}

void check_outside(const Place& written, const Place& read) {
  std::error_code error;
  if (!fs::is_directory(read.path, error) || !lies_in(written.path, read.path)) return;
  throw UsageError(std::string(written.option) + " " + zero::in_quotes(written.path) + " would lie in the folder of " +
                   read.option + ", and be read there the next time");
}

bool is_preset(const std::string& model) {
  return std::ranges::count(models::llama_presets(), model) > 0;
}

}  // namespace

void check_apart(const std::vector<Place>& places) {
  const auto reads = [](const Place& place) { return place.use == Use::reads; };
  for (auto a = places.begin(); a != places.end(); ++a)
    for (auto b = places.begin(); b != a; ++b) {
      if (a->path.empty() || b->path.empty() || (reads(*a) && reads(*b))) continue;
      check_apart(*b, *a);
      if (reads(*a) && !is_standard_output(b->path)) check_outside(*b, *a);
      if (reads(*b) && !is_standard_output(a->path)) check_outside(*a, *b);
    }
}

std::vector<Place> places_of(const RunOptions& options) {
  const bool measured = options.profile.empty();
  const std::string kind = options.device.empty() ? "cpu" : device_named(options.device).kind;
  const std::string profile = measured ? planner::usual_profile_path(kind) : options.profile;
  return {{"--model", is_preset(options.model) ? "" : options.model, Use::reads},
          {"--data", options.data, Use::reads},
          {"--plan", options.plan_file, Use::reads},
          {measured ? "the profile of this machine" : "--profile", profile == kNoProfile ? "" : profile, Use::reads},
          {"--json", options.json, Use::writes},
          {"--html", options.html, Use::writes},
          {"--trace", options.trace, Use::writes},
          {"--tensorboard", options.tensorboard, Use::writes_into},
          {"--save-to", options.saving.folder, Use::writes_into}};
}

std::vector<Place> places_of(const EvalOptions& options) {
  return {{"--model", options.model, Use::reads},
          {"--data", options.data, Use::reads},
          {"--json", options.json, Use::writes}};
}

}  // namespace cli

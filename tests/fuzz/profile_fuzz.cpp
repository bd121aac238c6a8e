// Profiles of machines: the same when written and read again.
#include "planner/profile.h"

#include <string>

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zero::fuzz::result_or_error([&] {
    const auto profile = planner::profile_from_json({reinterpret_cast<const char*>(data), size}, "input");
    zero::fuzz::require(planner::profile_from_json(planner::to_json(profile), "written") == profile);
  });
  return 0;
}

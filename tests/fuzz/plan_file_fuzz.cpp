// Plan files: the same when written and read again.
#include "planner/plan_file.h"

#include <string>

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zero::fuzz::result_or_error([&] {
    const auto file = planner::plan_file_from_json({reinterpret_cast<const char*>(data), size}, "input");
    zero::fuzz::require(planner::plan_file_from_json(planner::to_json(file), "written") == file);
    file.settings.plan(zero::Plan::named(file.plan)).validate({file.ranks, {.shard = file.shard_ranks}});
  });
  return 0;
}

// DeepSpeed's configuration.
#include "planner/deepspeed.h"

#include <string>

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zero::fuzz::result_or_error([&] {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const planner::DeepSpeed read = planner::deepspeed_from_json(text, "input", 4);
    zero::fuzz::require(std::get<std::int64_t>(read.settings["accumulate"]) > 0);
    zero::fuzz::require(!read.batch || *read.batch > 0);
  });
  return 0;
}

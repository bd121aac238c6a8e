// Indices of safetensors files: no file outside of their folder, and the same when written and read again.
#include <string>
#include <string_view>

#include "fuzz/fuzz.h"
#include "persist/safetensors_folder.h"

using namespace zero;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::result_or_error([&] {
    const SafetensorsFiles files = read_safetensors_index({reinterpret_cast<const char*>(data), size}, "input");
    for (const auto& [tensor, file] : files)
      fuzz::require(!file.empty() && file.front() != '/' && ("/" + file + "/").find("/../") == std::string::npos);
    fuzz::require(read_safetensors_index(write_safetensors_index(files, 0), "written") == files);
  });
  return 0;
}

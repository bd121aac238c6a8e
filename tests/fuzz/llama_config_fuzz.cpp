// Hugging Face's config.json.
#include "models/llama_config.h"

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const zero::fuzz::InputFile file;
  file.write(data, size);
  zero::fuzz::result_or_error([] {
    const models::LlamaConfig config = models::llama_from_file(file.path());
    zero::fuzz::require(config.faults().empty());
    zero::fuzz::require(models::parameter_count(config) > 0);
  });
  return 0;
}

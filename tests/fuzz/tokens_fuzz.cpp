// Files of tokens: the first byte of an input chooses the format, the rest is the file.
#include "models/tokens.h"

#include <vector>

#include "fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const zero::fuzz::InputFile file;
  file.write(data + 1, size - 1);
  zero::fuzz::result_or_error([&] {
    const auto source = models::TokenSource::open(file.path(), static_cast<models::TokenFormat>(data[0] % 4));
    zero::fuzz::require(source.size() > 0 && source.size() < static_cast<std::int64_t>(size));
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(source.size()));
    source.read(0, tokens);
    for (const std::int64_t token : tokens) zero::fuzz::require(token >= 0 && token < std::int64_t{1} << 32);
    zero::fuzz::require(!source.where(source.size() - 1).empty());
  });
  return 0;
}

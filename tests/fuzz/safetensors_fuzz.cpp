// Headers of safetensors files. What is read is consistent, and the same when it is written and read again.
#include "persist/safetensors.h"

#include <span>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"

namespace {

using namespace zero;

void expect_consistent(SafetensorsHeader header, std::int64_t file_bytes) {
  std::int64_t at = 0;
  for (const TensorEntry& tensor : header.tensors) {
    fuzz::require(tensor.begin == at && tensor.bytes() == bytes_of(tensor.type, tensor.shape));
    at = tensor.end;
  }
  fuzz::require(header.data_begin + at == file_bytes && header.data_begin + header.data_bytes() == file_bytes);

  const std::string written = write_safetensors_header(header);
  const std::vector<char> exact(written.begin(), written.end());
  fuzz::require(read_safetensors_header(exact, header.data_begin + header.data_bytes(), "written") == header);
}

void read(std::span<const char> bytes, std::int64_t file_bytes) {
  fuzz::result_or_error([&] { expect_consistent(read_safetensors_header(bytes, file_bytes, "input"), file_bytes); });
}

}  // namespace

// Once the input is a file. Once all behind its first eight bytes is a header, and they say how much follows it: most
// mutations change a header's length.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* const bytes = reinterpret_cast<const char*>(data);
  read({bytes, size}, static_cast<std::int64_t>(size));
  if (size < 8) return 0;
  std::vector<char> header(bytes, bytes + size);
  for (std::size_t i = 0; i < 8; ++i) header[i] = static_cast<char>((size - 8) >> 8 * i & 0xff);
  read(header, static_cast<std::int64_t>(size) + data[0] + 256 * data[1]);
  return 0;
}

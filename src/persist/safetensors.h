// The header of a file in the safetensors format: eight bytes that say how long it is, little-endian, then JSON that
// gives each tensor its type, its shape and its bytes. These follow without a gap, row-major, little-endian. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/dtype.h"

namespace zero {

// All of the format. Several elements of f4, f6_e2m3 and f6_e3m2 share a byte.
enum class TensorType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};
inline constexpr std::size_t kTensorTypes = 22;

// As the format has it: "F32", "BOOL".
std::string_view name(TensorType type);
std::optional<TensorType> tensor_type_named(std::string_view name);
TensorType type_of(Dtype dtype);
// Of one element.
int bits_of(TensorType type);
// Of all elements; none where a size is negative, the last byte is not full, or there are 2^60 and more, which no file
// system holds.
std::optional<std::int64_t> bytes_of(TensorType type, std::span<const std::int64_t> shape);

struct TensorEntry {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape = {};  // of a scalar: none
  std::int64_t begin = 0, end = 0;       // of its bytes, behind the header
  std::int64_t bytes() const { return end - begin; }
  bool operator==(const TensorEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors = {};  // in the order of their bytes
  std::map<std::string, std::string> metadata = {};
  std::int64_t data_begin = 0;  // in the file

  std::int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
  bool operator==(const SafetensorsHeader&) const = default;
};

// A longer header is refused, by others too.
inline constexpr std::int64_t kMostSafetensorsHeader = 100'000'000;

// What a file begins with. Lays the tensors out one behind the other in their order, and writes their `begin` and `end`
// and `data_begin`, a multiple of `alignment`, into `header`. A tensor begins at a multiple of its element's size if
// those of wider types come first. `alignment` is a multiple of 8. Throws CheckpointError, naming the tensor, for a
// name that is given twice, is no UTF-8 or is "__metadata__", for a shape without a size in bytes, and for metadata
// that is no UTF-8.
std::string write_safetensors_header(SafetensorsHeader& header, std::int64_t alignment = 8);

// How many bytes of a file read_safetensors_header() needs to see, found in the first eight. Throws CheckpointError.
std::int64_t safetensors_data_begin(std::span<const char> bytes, std::int64_t file_bytes, const std::string& file);

// `bytes` are the first of the file, `file` is its name, for errors. What is returned is consistent: every tensor's
// bytes are as many as its type and shape take, and all tensors together are the file behind the header, each byte
// once. Reads nothing outside `bytes`; uses memory in proportion to the header. Throws CheckpointError, naming file,
// tensor and fault, for everything that the format's specification forbids.
SafetensorsHeader read_safetensors_header(std::span<const char> bytes, std::int64_t file_bytes,
                                          const std::string& file);

}  // namespace zero

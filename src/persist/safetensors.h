// Stand-in until branch safetensors is merged.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace zero {

enum class TensorType : std::uint8_t { u8, i32, i64, f16, bf16, f32, f64 };

struct TensorEntry {
  std::string name;
  TensorType type;
  std::vector<std::int64_t> shape;
  std::int64_t begin, end;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin = 0;
};

std::string write_safetensors_header(SafetensorsHeader& header, std::int64_t alignment = 8);

}  // namespace zero

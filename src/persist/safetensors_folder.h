// Tensors by name, out of one safetensors file or of several with an index beside them, as Hugging Face lays out a
// model. No torch.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "persist/safetensors_file.h"

namespace zero {

inline constexpr std::string_view kSafetensorsModel = "model.safetensors";
inline constexpr std::string_view kSafetensorsIndex = "model.safetensors.index.json";

// The file of each tensor.
using SafetensorsFiles = std::map<std::string, std::string>;

// An index as text. `bytes` are those of all tensors. Throws CheckpointError for a name that is no UTF-8.
std::string write_safetensors_index(const SafetensorsFiles& files, std::int64_t bytes);
// Throws CheckpointError for a text that is no index, and for a file that would lie outside of the folder or has no
// name; `source` says whose text it is.
SafetensorsFiles read_safetensors_index(std::string_view text, const std::string& source);

// Immutable, and safe to read from several threads.
class SafetensorsFolder {
 public:
  struct Tensor {
    const SafetensorsFile* file;
    const TensorEntry* entry;
  };

  // A folder, of which model.safetensors is taken or else what model.safetensors.index.json lists; or one file: a
  // safetensors file, or an index, "*.json". Throws CheckpointError for a file that cannot be read or is no
  // safetensors file, and for a tensor that is not in the file that the index names. What only a file knows, and not
  // the index, is left out. Keeps every file of the index open.
  explicit SafetensorsFolder(const std::string& path);
  SafetensorsFolder(const SafetensorsFolder&) = delete;
  SafetensorsFolder& operator=(const SafetensorsFolder&) = delete;

  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

 private:
  void add_file(const std::string& path);
  void add_index(const std::string& path);

  std::deque<SafetensorsFile> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace zero

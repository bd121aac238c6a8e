// What a module has to be saved and loaded by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "partition/tiles.h"
#include "persist/safetensors.h"

namespace torch::nn {
class Module;
}

namespace zero {

// A parameter or buffer, under every name that the module has for it; of a tile, rows of what has these names.
struct ModuleTensor {
  std::vector<std::string> names;
  at::Tensor tensor;  // without its history
  std::optional<Tile> tile = {};

  // Of all that has the names, and where in it the tensor begins.
  std::vector<std::int64_t> shape() const;
  std::int64_t first() const;
};

// In the module's order, parameters first, and what is in tiles in the order of its rows; without buffers that are not
// persistent. Throws StateError where one
// is an engine's, and no gather scope holds it.
std::vector<ModuleTensor> tensors_of(const torch::nn::Module& module);

// None where the format, or LibTorch, has no such type.
std::optional<TensorType> tensor_type_of(at::ScalarType type);
std::optional<at::ScalarType> scalar_type_of(TensorType type);

}  // namespace zero

// Writes a model as Hugging Face lays it out: model.safetensors, or files of a limited size, model-00001-of-00003, and
// model.safetensors.index.json. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "persist/env.h"
#include "persist/weight_files.h"

namespace zero {

using WriteBytes = std::function<void(const void* bytes, std::int64_t count)>;
// Hands the bytes of a tensor to `write`, from the first to the last.
using TensorBytes = std::function<void(std::size_t tensor, const WriteBytes& write)>;

// Which tensors go into each file: they are taken in their order, and a file ends before the tensor with which it would
// have more than `most` bytes of tensors. One that is larger has a file of its own.
std::vector<std::vector<std::size_t>> shards_of(const std::vector<WeightTensor>& tensors, std::int64_t most);

// Writes them into `folder`, which is there. The files get their names when all are on the disk, the index last.
// Throws CheckpointError where something cannot be written, the folder has a model's weights already, or a name is
// given twice or is no UTF-8; ConfigError where `most` is not positive; and what `bytes` throws. Then it leaves at most
// shards that no index names.
void write_safetensors_model(Env& env, const std::string& folder, const std::vector<WeightTensor>& tensors,
                             std::int64_t most, const TensorBytes& bytes);

}  // namespace zero

#include "persist/weight_files.h"

#include <functional>
#include <numeric>
#include <span>

#include "zero/state.h"

namespace zero {

std::int64_t WeightTensor::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void SafetensorsWeights::list() {
  for (const auto& [name, tensor] : folder_.tensors()) {
    places_.push_back(&tensor);
    tensors_.push_back({name, tensor.entry->type, tensor.entry->shape});
  }
}

void SafetensorsWeights::read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) {
  const auto [file, entry] = *places_.at(tensor);
  const std::int64_t bits = bits_of(entry->type), first = begin * bits / 8, last = (end * bits + 7) / 8;
  file->read(*entry, first, std::span(static_cast<char*>(values), static_cast<std::size_t>(last - first)));
}

CheckpointWeights::CheckpointWeights(Env& env, const std::string& folder)
    : checkpoint_(Checkpoint::open(env, folder)), source_(env, checkpoint_) {
  for (std::size_t i = 0; i < source_.tensors().size(); ++i) {
    const StateTensor& tensor = source_.tensors()[i];
    const StateKind kind = tensor.key.kind;
    if (kind != StateKind::main_weight && kind != StateKind::parameter && kind != StateKind::buffer) continue;
    places_.push_back(i);
    tensors_.push_back({tensor.key.name, type_of(tensor.dtype), tensor.shape});
  }
}

void CheckpointWeights::read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) {
  source_.read(places_.at(tensor), begin, end, values);
}

bool is_checkpoint(Env& env, const std::string& folder) {
  return env.exists(folder + "/" + std::string(kManifest));
}

std::unique_ptr<Weights> open_weights(const std::string& path) {
  if (is_checkpoint(posix_env(), path)) return std::make_unique<CheckpointWeights>(posix_env(), path);
  return std::make_unique<SafetensorsWeights>(path);
}

}  // namespace zero

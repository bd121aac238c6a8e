// A model's tensors by name, out of safetensors files or of a checkpoint, in stretches of their row-major order. No
// torch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "persist/checkpoint_reader.h"
#include "persist/safetensors.h"
#include "persist/safetensors_folder.h"

namespace zero {

struct WeightTensor {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape = {};
  std::int64_t numel() const;
  bool operator==(const WeightTensor&) const = default;
};

// One thread.
class Weights {
 public:
  virtual ~Weights() = default;
  virtual const std::vector<WeightTensor>& tensors() const = 0;  // in the order of what they are read from
  // Writes elements [begin, end) of a tensor to `values`; of types that share bytes, whole bytes. Throws
  // CheckpointError for what cannot be read or is not what was written.
  virtual void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) = 0;
};

class SafetensorsWeights final : public Weights {
 public:
  explicit SafetensorsWeights(const std::string& path) : folder_(path) { list(); }
  const std::vector<WeightTensor>& tensors() const override { return tensors_; }
  void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) override;

 private:
  void list();

  SafetensorsFolder folder_;
  std::vector<const SafetensorsFolder::Tensor*> places_;
  std::vector<WeightTensor> tensors_;
};

// Of a checkpoint, parameters and buffers: main weights, where it has them, else the parameters as they are stored.
class CheckpointWeights final : public Weights {
 public:
  CheckpointWeights(Env& env, const std::string& folder);
  const std::vector<WeightTensor>& tensors() const override { return tensors_; }
  void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) override;

 private:
  Checkpoint checkpoint_;
  CheckpointSource source_;
  std::vector<std::size_t> places_;  // in the source
  std::vector<WeightTensor> tensors_;
};

// Whether a folder is one checkpoint.
bool is_checkpoint(Env& env, const std::string& folder);

// A checkpoint, or what SafetensorsFolder opens.
std::unique_ptr<Weights> open_weights(const std::string& path);

}  // namespace zero

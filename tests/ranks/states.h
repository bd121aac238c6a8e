// The state of an engine in memory, whole, and the model whose state the tests carry over.
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <mutex>

#include "lm.h"

namespace zero::test {

// Gathered from all ranks, without the help of any layout: row-major, by name.
class MemoryState final : public StateSource {
 public:
  const StateScalars& scalars() const override { return scalars_; }
  const std::vector<StateTensor>& tensors() const override { return tensors_; }
  void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) override;

  // Adds what one rank has; the ranks may do so at the same time.
  void add(const EngineState& state);
  // What is wrong with what all ranks added; empty where each element came once, and copies of it were the same.
  std::string faults() const;

  // For tests that spoil it.
  StateScalars& scalars_to_change() { return scalars_; }
  std::vector<StateTensor>& tensors_to_change() { return tensors_; }
  std::function<void(std::size_t tensor)> before_read = [](std::size_t) {};

  std::size_t find(const StateKey& key) const;
  const std::vector<char>& bytes(const StateKey& key) const { return bytes_[find(key)]; }

 private:
  friend std::string difference(const MemoryState& a, const MemoryState& b);
  void take(const StateTensor& tensor, const StatePiece& piece);

  std::mutex mutex_;
  StateScalars scalars_;
  std::vector<StateTensor> tensors_;
  std::vector<std::vector<char>> bytes_;
  std::vector<std::vector<char>> come_;  // by element
  struct Copy {
    std::size_t tensor, begin;  // in bytes
    std::vector<char> bytes;
  };
  std::vector<Copy> copies_;  // others than the first
  std::string faults_;
};

// The first difference in words; empty where there is none, to the bit.
std::string difference(const MemoryState& a, const MemoryState& b);

// With what lies, moves and ends in ways of its own: a head tied to the embedding, a frozen layer, filters in the
// memory order of channels last, a matrix in that of its transpose, a parameter without elements, buffers.
struct StatesModelImpl : Lm {
  // `trains_all`: without a frozen layer.
  explicit StatesModelImpl(bool trains_all = false);
  at::Tensor loss(std::int64_t index);

  torch::nn::Conv2d filters;
  at::Tensor turned, empty;
};

using States = std::shared_ptr<MemoryState>;
// What a stretch of a training begins with, and leaves.
struct Stretch {
  Job job;
  bool unfreezes = false;  // trains the frozen layer, too: from its second step on, or from a state on
  bool trained = false;    // that layer is not frozen
};
// Trains job.steps steps from a state, or from the beginning. `told`: what the steps tell, of all stretches.
States trained(const Stretch& stretch, const States& from, Outcome* told = nullptr);

}  // namespace zero::test

// One micro-batch of models::Llama, operator by operator, as LibTorch computes it on a CPU: which blocks of memory each
// reads and makes, when they are given back, and how much it works. Forward and backward, gradients of parameters
// included; what the engine holds itself (parameters, their sums of gradients, moments) is not. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "models/llama_config.h"
#include "partition/stored_way.h"
#include "planner/processor.h"
#include "zero/plan.h"

namespace planner {

struct MicroBatch {
  models::LlamaConfig config;
  std::int64_t batch = 1;  // sequences
  std::int64_t seq = 1;    // tokens of each
  zero::Precision precision = zero::Precision::fp32;
  ProductScratch scratch = ProductScratch::blocks;  // product_scratch() of the processor that computes it
  zero::ActivationBudget budget = {};
  bool gathers = false;      // parameters are there while they are used, unit by unit
  zero::StoredWay way = {};  // of activations that come back otherwise than by being computed again
};

// A result of an operator, in memory of its own. Numbers count up, and tell blocks apart where each layer is told of.
struct Block {
  int number = -1;
  std::int64_t bytes = 0;
};

struct StepOperator {
  static constexpr int kNoUnit = -1;

  std::string_view name;
  std::span<const Block> reads;
  // Whose parameters it reads: the embedding's, which is 0, those of layers, the norm's, the head's.
  int unit = kNoUnit;
  bool of_forward = true;  // which may go on in backward, where the program itself computes again
};

class StepListener {
 public:
  StepListener() = default;
  virtual ~StepListener() = default;
  StepListener(const StepListener&) = delete;
  StepListener& operator=(const StepListener&) = delete;

  // Where in the step what follows happens.
  virtual void at(std::string_view moment) { static_cast<void>(moment); }
  // The gradients of a layer, or of the embedding, will be complete now.
  virtual void completes_layer() {}
  virtual void completes_embedding() {}
  // An operator runs. What it makes and how it works is told until the next one does.
  virtual void runs(const StepOperator& its) { static_cast<void>(its); }
  virtual void hold(const Block& made) { static_cast<void>(made); }
  // So much beside what it makes, for its own time.
  virtual void scratch(std::int64_t bytes) { static_cast<void>(bytes); }
  virtual void drop(const Block& block) { static_cast<void>(block); }
  // A product of matrices [m, k] and [k, n].
  virtual void product(std::int64_t m, std::int64_t n, std::int64_t k) { static_cast<void>(m + n + k); }
  // Causal attention, or its backward, of `flops` floating-point operations.
  virtual void attention(double flops, bool backward) { static_cast<void>(flops + backward); }
  // What `once` tells of happens so often, one after the other. Who needs not hear of each may call it less often.
  virtual void repeat(std::int64_t times, const std::function<void()>& once) {
    for (std::int64_t i = 0; i < times; ++i) once();
  }
  // An operator that goes through `elements` once: reads and writes `bytes`.
  virtual void sweep(std::int64_t elements, std::int64_t bytes) { static_cast<void>(elements + bytes); }
};

// Tells `listener` of one micro-batch from the first use of a parameter to the end of backward.
void walk(const MicroBatch& work, StepListener& listener);

}  // namespace planner

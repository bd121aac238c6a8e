// The kinds of operators that a micro-batch of models::Llama is made of, told to who listens: each with what it takes
// of memory. No torch.
//
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>

#include "base/restore.h"
#include "planner/llama_step.h"

namespace planner {

class StepOperators {
 public:
  using Reads = std::initializer_list<Block>;

  StepOperators(const MicroBatch& work, StepListener& listener);

 protected:
  static constexpr std::int64_t kWide = 4;  // bytes of fp32

  std::int64_t bytes(std::int64_t width) const { return tokens_ * width * size_; }
  std::int64_t wide(std::int64_t width) const { return tokens_ * width * kWide; }

  void runs(std::string_view name, Reads reads, int unit = StepOperator::kNoUnit) {
    to_.runs({name, {reads.begin(), reads.size()}, unit, forward_});
  }
  // Of the operator that runs.
  Block hold(std::int64_t bytes);
  void sweep(std::int64_t made, std::int64_t operands) { to_.sweep(made / size_, made * (1 + operands)); }

  // An operator that makes a new block of so many bytes, and reads `operands` as large.
  Block make(std::string_view name, std::int64_t made, Reads reads, std::int64_t operands = 1,
             int unit = StepOperator::kNoUnit);
  // That makes a block, and is too small to take time.
  Block small(std::string_view name, std::int64_t made, Reads reads);
  // Of all tokens with a weight [to, from].
  Block product(std::int64_t to, std::int64_t from, const Block& input, int unit);
  // The gradient of that weight, and behind it that of the input.
  struct Gradients {
    Block weight, input;
  };
  Gradients product_backward(std::int64_t to, std::int64_t from, const Block& gradient, const Block& input, int unit);

  // The tokens are those of one piece after the other, as zero::cross_entropy takes them.
  void each_piece(std::int64_t pieces, const std::function<void()>& once);

  // What runs from here on is of a backward; but for what `once` tells of.
  void begin_backward() { forward_ = false; }
  template <class Once>
  auto computed_again(const Once& once) {
    const zero::Restore forward(forward_, true);
    return once();
  }

  template <class... Blocks>
  void drop(const Blocks&... blocks) {
    (to_.drop(blocks), ...);
  }

  StepListener& to_;
  std::int64_t tokens_;
  bool narrow_;
  std::int64_t size_;  // bytes of an element

 private:
  // What oneDNN takes beside a product in 16 bits.
  std::int64_t beside_product(std::int64_t to, std::int64_t from) const;
  std::int64_t beside_gradient(std::int64_t elements) const;
  std::int64_t wide_result(std::int64_t elements) const {
    return scratch_ == ProductScratch::wide_results ? elements * kWide : 0;
  }

  ProductScratch scratch_;
  int blocks_ = 0;
  bool forward_ = true;
};

}  // namespace planner

#include "planner/step_operators.h"

namespace planner {
namespace {

ProductScratch scratch_of(const MicroBatch& work) {
  if (work.precision == zero::Precision::fp32) return ProductScratch::none;
  return work.precision == zero::Precision::fp16 ? std::min(work.scratch, ProductScratch::blocks) : work.scratch;
}

}  // namespace

StepOperators::StepOperators(const MicroBatch& work, StepListener& listener)
    : to_(listener),
      tokens_(work.batch * work.seq),
      narrow_(work.precision != zero::Precision::fp32),
      size_(narrow_ ? 2 : kWide),
      scratch_(scratch_of(work)) {}

Block StepOperators::hold(std::int64_t bytes) {
  const Block made{blocks_++, bytes};
  to_.hold(made);
  return made;
}

Block StepOperators::make(std::string_view name, std::int64_t made, Reads reads, std::int64_t operands, int unit) {
  runs(name, reads, unit);
  const Block block = hold(made);
  sweep(made, operands);
  return block;
}

Block StepOperators::small(std::string_view name, std::int64_t made, Reads reads) {
  runs(name, reads);
  return hold(made);
}

Block StepOperators::product(std::int64_t to, std::int64_t from, const Block& input, int unit) {
  runs("product", {input}, unit);
  const Block result = hold(bytes(to));
  to_.product(tokens_, to, from);
  if (scratch_ != ProductScratch::none) to_.scratch(beside_product(to, from));
  return result;
}

// Blocks of its operands in another order, at most, on the processors on which it was looked at; with AMX a weight, as
// far as it is kept for all tokens, whose rows are filled up to whole blocks; with AVX-512 alone the result in fp32.
std::int64_t StepOperators::beside_product(std::int64_t to, std::int64_t from) const {
  const std::int64_t inputs = std::min<std::int64_t>(200'000, 84'000 + 96 * from);
  const std::int64_t kept = tokens_ < 128 ? 520'000 + 2'400 * tokens_ : 1'000'000 + 2'600 * tokens_;
  const std::int64_t weight = std::min(to * from * size_ * 32 / 25, kept) + 6'000;
  return std::max({inputs, weight, wide_result(tokens_ * to)});
}

std::int64_t StepOperators::beside_gradient(std::int64_t elements) const {
  return std::max(std::min<std::int64_t>(1'400'000, 64'000 + 1'000 * tokens_), wide_result(elements));
}

StepOperators::Gradients StepOperators::product_backward(std::int64_t to, std::int64_t from, const Block& gradient,
                                                         const Block& input, int unit) {
  runs("gradient of a weight", {gradient, input});
  const Block weight = hold(to * from * size_);
  to_.product(to, from, tokens_);
  if (scratch_ != ProductScratch::none) to_.scratch(beside_gradient(to * from));
  return {weight, product(from, to, gradient, unit)};
}

void StepOperators::each_piece(std::int64_t pieces, const std::function<void()>& once) {
  const std::int64_t all = tokens_, count = std::min(pieces, all), most = (all + count - 1) / count;
  for (std::int64_t begin = 0; begin < all; begin += most) {
    tokens_ = std::min(most, all - begin);
    once();
  }
  tokens_ = all;
}

}  // namespace planner

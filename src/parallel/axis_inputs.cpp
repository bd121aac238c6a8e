#include "parallel/axis_inputs.h"

#include <utility>

#include "backwards/unwatched.h"
#include "parallel/sharded_tensor.h"

namespace zero {
namespace {

class AxisInputs final : public PartitionedInputs {
 public:
  explicit AxisInputs(std::shared_ptr<TensorAxis> axis) : axis_(std::move(axis)) {}

  std::int64_t operators() const override { return axis_->operators(); }

  // What is laid out in another order would come back in this one, and be computed with in another.
  at::Tensor slice_of(const at::Tensor& input) override {
    const Unwatched unwatched;
    const at::Tensor values = sharded::all_here(input);
    if (!values.defined() || !values.is_contiguous() || !axis_->divides(values.numel())) return {};
    return axis_->own(values.detach().view({-1}), {0}).clone();
  }

  at::Tensor whole_of(const at::Tensor& slice, at::IntArrayRef sizes) override {
    const Unwatched unwatched;
    return axis_->gather(slice, {0}).view(sizes);
  }

 private:
  std::shared_ptr<TensorAxis> axis_;
};

}  // namespace

std::shared_ptr<PartitionedInputs> inputs_partitioned_over(std::shared_ptr<TensorAxis> axis) {
  return std::make_shared<AxisInputs>(std::move(axis));
}

}  // namespace zero

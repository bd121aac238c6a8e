#include "parallel/copied_view.h"

#include <ATen/Functions.h>
#include <ATen/core/stack.h>

#include <utility>

namespace zero {

at::Tensor whole_laid_out(const at::Tensor& tensor, const TensorPart& part) {
  ShardedStorage* const storage = ShardedStorage::of(tensor.unsafeGetTensorImpl());
  const bool own = storage != nullptr && storage->part().values.is_same(part.values);
  const at::Tensor all = own ? storage->gathered() : sharded::whole(part);
  if (tensor.strides() == all.strides()) return all;
  at::Tensor once = all;  // of what is expanded
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.stride(dim) == 0) once = once.narrow(dim, 0, 1);
  return at::empty_strided(once.sizes(), tensor.strides(), all.options()).copy_(once).expand(tensor.sizes());
}

CopiedView::CopiedView(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments, std::size_t which,
                       at::Tensor copy)
    : op_(op),
      arguments_(std::move(arguments)),
      which_(which),
      copy_(std::move(copy)),
      of_(sharded::part_of(arguments_.front().toTensor())),
      seen_(of_.axis->writes_of(of_.values)) {
  arguments_.front() = sharded::outside_of_graphs(arguments_.front().toTensor());
  of_.axis->add_copy(1);
}

CopiedView::~CopiedView() {
  of_.axis->add_copy(-1);
}

at::Tensor CopiedView::view_in(const at::Tensor& whole) const {
  torch::jit::Stack stack(arguments_);
  stack.front() = whole;
  op_.callBoxed(&stack);
  return stack.front().isTensor() ? stack.front().toTensor() : stack.front().toTensorVector().at(which_);
}

void CopiedView::refresh() {
  const std::int64_t writes = of_.axis->writes_of(of_.values);
  if (std::exchange(seen_, writes) == writes) return;
  copy_.copy_(view_in(whole_laid_out(arguments_.front().toTensor(), of_)));
}

void CopiedView::write_back() {
  const at::Tensor all = whole_laid_out(arguments_.front().toTensor(), of_);
  view_in(all).copy_(copy_);
  of_.values.copy_(of_.axis->own(all, of_.placement.cut()));
  of_.axis->wrote(of_.values);
  seen_ = of_.axis->writes_of(of_.values);
}

}  // namespace zero

// What would be a view of a tensor, were that whole, and is none, since the ranks have parts of it: a copy, on every
// rank, that is kept the same as what it is a view of, whichever of the two is written.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/sharded_tensor.h"

namespace zero {

class CopiedView {
 public:
  // Result number `which` of the operator, one of a list counted by itself; `of`, the first argument, has global sizes.
  CopiedView(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments, std::size_t which, at::Tensor copy);
  ~CopiedView();
  CopiedView(const CopiedView&) = delete;
  CopiedView& operator=(const CopiedView&) = delete;

  // What it is a view of.
  const TensorPart& of() const { return of_; }

  // Before the copy is read or written: takes what has been written to the other since. Collective where anything was.
  void refresh();
  // Behind a write to the copy, or a view of it. Collective.
  void write_back();

 private:
  at::Tensor view_in(const at::Tensor& whole) const;

  c10::OperatorHandle op_;
  std::vector<c10::IValue> arguments_;  // the first outside of any graph
  std::size_t which_;
  at::Tensor copy_;
  TensorPart of_;
  std::int64_t seen_;  // writes of what it is a view of
};

// All of a tensor, in the memory order that it says it has, as operators expect that were told strides, or the order of
// another argument. Collective.
at::Tensor whole_laid_out(const at::Tensor& tensor, const TensorPart& part);

}  // namespace zero

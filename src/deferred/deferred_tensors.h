// Tensors whose values are not there yet: ordinary ones for whoever looks at sizes, dtype and device, or moves them
// about, but their storage has no memory. A key of their own among the tensor's dispatch keys, below autograd, brings
// every operator on one to a boxed fallback, which notes it (see deferred_values.h). Inside zero::Deferring the key is
// the thread's, so that what operators make is seen too.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <functional>
#include <string>

#include "deferred/deferred_values.h"

namespace c10 {
class OperatorHandle;
}

namespace zero::deferred_tensors {

// While it lives, the fallback does not see this thread's operators.
class Off {
 public:
  Off();
  ~Off();
  Off(const Off&) = delete;
  Off& operator=(const Off&) = delete;

 private:
  bool excluded_before_;
};

// Makes operators of this thread give tensors without values. Counted.
void begin();
void end();
bool under_way();

bool deferred(const at::Tensor& tensor);

// Its storage has memory and values from now on, for every tensor that has it.
void settle(const at::Tensor& tensor);
// Gives a tensor, deferred or not, values from elsewhere, row-major ones, whose memory may become its own.
class Settling {
 public:
  // Takes what memory it needs.
  Settling(at::Tensor tensor, at::Tensor values);
  void commit();

 private:
  at::Tensor tensor_, values_;
  at::Tensor plain_;     // of its storage, and without a fallback of ours
  c10::Storage memory_;  // for it
};
// The tensor alone is no longer one of those: for when its storage has values.
void forget(const at::Tensor& tensor);

// Writes a deferred tensor's values, computed now, into `place`, of the same sizes; the tensor is as it was.
void compute_into(const at::Tensor& tensor, const at::Tensor& place);

// Whether a tensor is deferred and all of its storage, in row-major order; its values are then what `source` has.
bool whole(const at::Tensor& tensor);
void set_values(const at::Tensor& tensor, DeferredValues::Source source);
// The source of such a tensor, nothing having been computed with it since; null: there is none.
const DeferredValues::Source* source_of(const at::Tensor& tensor);
// Reads elements [begin, begin + n) of such a tensor to `place`, contiguous, of n elements.
void read_into(const at::Tensor& tensor, std::int64_t begin, const at::Tensor& place);

// Tensors of another kind have the same key, and the same fallback: `run` is asked about operators on tensors with the
// key, and runs those that are on its own. For the process, from then on.
using RunOthers = bool (*)(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
void others_run_by(RunOthers run);

// Errors about it name it so.
void name(const at::Tensor& tensor, const std::string& name);

}  // namespace zero::deferred_tensors

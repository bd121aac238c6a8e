// The operators that a function runs, in their order, for who plays them through once more: below autograd, with
// tensors of the meta device in the place of theirs. Nothing of the function's memory is kept.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

namespace zero {

class OperatorFlow {
 public:
  // One that LibTorch does not take apart, with stand-ins for tensors.
  struct Call {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments, results;
  };

  // Runs it, on this thread, and throws what it throws. A device's backward, which is on another, is recorded, too.
  explicit OperatorFlow(const std::function<void()>& run);
  OperatorFlow(const OperatorFlow&) = delete;
  OperatorFlow& operator=(const OperatorFlow&) = delete;

  const std::vector<Call>& calls() const { return calls_; }
  // One for all tensors that look at the same memory in the same way.
  at::Tensor stand_in(const at::Tensor& tensor);

 private:
  friend struct FlowObserver;
  using Look =
      std::tuple<const void*, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>, at::ScalarType>;

  std::vector<c10::IValue> stand_ins(at::ArrayRef<c10::IValue> values);

  std::mutex mutex_;  // while it runs
  std::vector<Call> calls_;
  std::map<Look, at::Tensor> stand_ins_;
  // That no other storage gets the address of one that has ended.
  std::map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

}  // namespace zero

// Values of a storage that are not there yet, as what is to be carried out for them. Immutable, like a commit: what
// writes a storage makes new values that begin with those before, so that whoever read those still finds them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backwards/arguments.h"

namespace zero {

class DeferredValues;
using DeferredPointer = std::shared_ptr<const DeferredValues>;

// A tensor among an operator's arguments. Where it stands there is a tensor of the meta device, of its sizes and
// strides.
struct DeferredOperand {
  const c10::TensorImpl* stands_for;
  DeferredPointer values;
  bool written;
};

// An operator as it was called.
struct RecordedOperator {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  std::vector<DeferredOperand> operands;
  at::Generator generator;  // what it draws from, as that was then; undefined: it draws nothing
};

class DeferredValues {
 public:
  // Values from elsewhere.
  struct Source {
    // Writes bytes [begin, end) of a storage's to `memory`.
    std::function<void(std::int64_t begin, std::int64_t end, void* memory)> read;
    // Sources of the same mark have the same values, on whichever rank; 0: of none that is known.
    std::uint64_t mark = 0;
  };

  DeferredValues(std::int64_t bytes, at::Device device) : bytes_(bytes), device_(device) {}  // memory as it comes
  DeferredValues(std::int64_t bytes, at::Device device, Source source)
      : bytes_(bytes), device_(device), source_(std::move(source)) {}
  // What an operator returns, as its tensor number `result`, laid out like `like`.
  DeferredValues(std::int64_t bytes, at::Device device, std::shared_ptr<const RecordedOperator> by, int result,
                 at::Tensor like)
      : bytes_(bytes), device_(device), by_(std::move(by)), result_(result), like_(std::move(like)) {}
  // `before`, which the operator wrote.
  DeferredValues(DeferredPointer before, std::shared_ptr<const RecordedOperator> by)
      : bytes_(before->bytes_), device_(before->device_), by_(std::move(by)), before_(std::move(before)) {}
  ~DeferredValues();
  DeferredValues(const DeferredValues&) = delete;
  DeferredValues& operator=(const DeferredValues&) = delete;

  std::int64_t bytes() const { return bytes_; }
  at::Device device() const { return device_; }
  // Whose values these are, as they come; null: they are computed.
  const Source* source() const { return source_.read ? &source_ : nullptr; }

  // A storage with these values, computed now. `room`: such a storage, that may be used for it.
  c10::Storage compute(c10::Storage room = {}) const;

 private:
  class Computing;

  std::int64_t bytes_;
  at::Device device_;
  Source source_;
  std::shared_ptr<const RecordedOperator> by_;
  int result_ = -1;
  at::Tensor like_;
  mutable DeferredPointer before_;
};

// A tensor of `like`'s dtype, sizes, strides and place in a storage.
at::Tensor tensor_in(const c10::Storage& storage, const at::Tensor& like);

// The default generator of a device is where another was, as long as it lives.
class DrawsFrom {
 public:
  explicit DrawsFrom(const at::Generator& like);
  ~DrawsFrom();
  DrawsFrom(const DrawsFrom&) = delete;
  DrawsFrom& operator=(const DrawsFrom&) = delete;

 private:
  at::Generator generator_;
  at::Tensor before_;
};

}  // namespace zero

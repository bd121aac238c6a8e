// What an operator of LibTorch's does to storages, as far as its name and schema tell, and what they do not.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <vector>

namespace zero {

struct OperatorKind {
  explicit OperatorKind(const c10::OperatorHandle& op);
  // Made once for each operator and thread.
  static const OperatorKind& of(const c10::OperatorHandle& op);

  bool views = false;      // its results are views of its arguments, whose values it does not look at
  bool composite = false;  // it consists of others, which are seen one by one
  bool random = false;
  bool repeatable = false;  // run again on the same values, with the same random numbers, it gives the same results
  bool allocates = false;   // memory, whose values are left as they are
  bool statistics = false;  // it writes running statistics, of which its schema says nothing
  bool multiplies = false;  // matrices
  bool of_library = false;  // LibTorch's own: it has done with its arguments when it returns
  int generator = -1;       // number of the argument
  std::vector<char> writes = {};  // for each argument
};

// Whether one that may draw random numbers is asked to draw none, as dropout is in evaluation.
bool draws_nothing(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

}  // namespace zero

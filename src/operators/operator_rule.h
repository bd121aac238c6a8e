// What the dispatcher's fallback (operators/dispatch.cpp) does about an operator beside running it: rules, each in the
// file of its feature, in the order of the array there.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "backwards/autocast.h"
#include "operators/operands.h"

namespace zero {

// A call of an operator on its way through the rules that concern it.
struct OperatorCall {
  OperatorCall(const c10::OperatorHandle& called, c10::DispatchKeySet its_keys, torch::jit::Stack* with);

  // Through the rules behind the one that calls this, then the operator runs: its results take the arguments' place.
  void proceed();
  std::span<c10::IValue> results() const;
  // It is given no 16-bit tensor, and runs without autocast. Units have to be resident.
  void compute_in_fp32();

  const c10::OperatorHandle& op;
  c10::DispatchKeySet keys;
  torch::jit::Stack* stack;
  std::span<c10::IValue> arguments;                      // on the stack
  UnitSet units;                                         // among what the program gave
  std::uint32_t rules;                                   // that are to come, as bits
  bool within_cast;                                      // it is part of an operator whose arguments were cast
  bool takes_values = true;                              // of the units
  bool inside = false;                                   // it must run with the fallback still watching inside it
  std::optional<Cast> autocast = {};                     // under which it runs
  std::optional<Cast> fp32 = {};                         // it runs in fp32 instead of under this
  std::function<void(torch::jit::Stack*)> instead = {};  // computes the results, in place of the operator
};

struct OperatorName {
  static constexpr const char* kAny = "*";  // overload

  const char* name;
  const char* overload = "";
};

struct OperatorRule {
  enum When : unsigned {
    always = 0,
    with_units = 1,  // among the arguments
    in_16_bits = 2,  // in a forward that may compute so: with units, too
    drawing = 4,     // operators that may draw random numbers
  };

  std::span<const OperatorName> names = {};  // none: it concerns any operator
  When when = always;
  // Runs what is left by call.proceed(), unless it has put the results on the stack itself.
  void (*around)(OperatorCall& call);
};

namespace operator_rules {
extern const OperatorRule renormalisation, batch_norm, unit_arguments, set_as_copy, lookup, autocast, only_fp32, lstm,
    promotion, attention, random, backward, float8;
}

}  // namespace zero

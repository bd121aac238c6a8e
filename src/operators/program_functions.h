// Functions of the program's own (torch::autograd::Function). Their forward runs with gradients disabled, as an
// evaluation does, and what it computes of parameters begins a forward only where it shows a graph: to the next
// operator that is given it.
#pragma once

#include <ATen/core/ivalue.h>

#include <span>

namespace zero::program_functions {

// Around each operator of the thread that runs with gradients enabled. The first begins a forward of the engine whose
// parameters such a function has used, unless one is open.
void before_operator(std::span<const c10::IValue> arguments);
// Also behind what the library itself does with gradients enabled: no function of the program's has made its nodes.
void behind_operator();
// Whether an operator that runs with gradients disabled may be part of one.
bool inside();

}  // namespace zero::program_functions

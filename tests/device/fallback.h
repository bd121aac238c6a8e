// The CPU's kernels for tensors of the device.
#pragma once

#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace zero::test::accelerator {

// Runs `host_op` on the arguments of `op`, which it has, too. Those that only it has lie on the stack already.
void call_on_host(const c10::OperatorHandle& op, const c10::OperatorHandle& host_op, torch::jit::Stack& stack);

}  // namespace zero::test::accelerator

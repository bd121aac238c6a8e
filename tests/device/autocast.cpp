// Autocast on the device: the operators that LibTorch casts for on the CPU, cast in the same way.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <set>

#include "device/convert_tensors.h"
#include "device/runtime.h"

namespace zero::test::accelerator {
namespace {

using torch::jit::Stack;

enum class Cast { lower, widest, single };

// Those that are not listed compute in fp32.
Cast cast_of(const std::string& name) {
  static const std::set<std::string> kLower = {"conv1d",
                                               "conv2d",
                                               "conv3d",
                                               "conv_tbc",
                                               "conv_transpose1d",
                                               "conv_transpose2d",
                                               "conv_transpose3d",
                                               "_convolution",
                                               "mm",
                                               "bmm",
                                               "baddbmm",
                                               "addmm",
                                               "addbmm",
                                               "matmul",
                                               "linear",
                                               "_addmm_activation",
                                               "linalg_vecdot",
                                               "prelu",
                                               "mkldnn_rnn_layer",
                                               "scaled_dot_product_attention",
                                               "_native_multi_head_attention"};
  static const std::set<std::string> kWidest = {"stack", "cat", "index_copy"};
  const std::string plain = name.substr(name.find("::") + 2);
  return kLower.contains(plain) ? Cast::lower : kWidest.contains(plain) ? Cast::widest : Cast::single;
}

at::ScalarType dtype_for(Cast cast, Stack& stack, std::size_t first) {
  const at::ScalarType lower = at::autocast::get_autocast_dtype(kType);
  if (cast != Cast::widest) return cast == Cast::lower ? lower : at::kFloat;
  at::ScalarType widest = lower;
  for (std::size_t i = first; i < stack.size(); ++i)
    convert_tensors(stack[i], [&](const at::Tensor& tensor) {
      if (at::autocast::is_eligible(tensor, kType) && tensor.scalar_type() == at::kFloat) widest = at::kFloat;
      return tensor;
    });
  return widest;
}

template <Cast cast>
void cast_and_call(const c10::OperatorHandle& op, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKey::AutocastPrivateUse1);
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const at::ScalarType dtype = dtype_for(cast, *stack, first);
  for (std::size_t i = first; i < stack->size(); ++i)
    convert_tensors((*stack)[i],
                    [&](const at::Tensor& tensor) { return at::autocast::cached_cast(dtype, tensor, kType); });
  op.callBoxed(stack);
}

torch::CppFunction kernel_of(Cast cast) {
  switch (cast) {
    case Cast::lower: return torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Cast::lower>>();
    case Cast::widest: return torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Cast::widest>>();
    default: return torch::CppFunction::makeFromBoxedFunction<&cast_and_call<Cast::single>>();
  }
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  const auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::AutocastCPU))
    if (name.name.starts_with("aten::")) library.impl(c10::toString(name).c_str(), kernel_of(cast_of(name.name)));
}

}  // namespace
}  // namespace zero::test::accelerator

// The device's own operators: what has to do with its memory and streams, and what the CPU calls by another name.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "device/fallback.h"
#include "device/runtime.h"

namespace zero::test::accelerator {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device wanted(const std::optional<c10::Device>& given) {
  return given && given->has_index() ? *given : device(current_device());
}

Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<c10::Device> where, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "only tensors of the host can be pinned");
  const c10::DeviceGuard guard(wanted(where));
  return at::detail::empty_generic(sizes, c10::GetAllocator(kType), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<c10::Device> where, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "only tensors of the host can be pinned");
  const c10::DeviceGuard guard(wanted(where));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kType), kKeys,
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  copy_late(source.sizes() == target.sizes() ? source : source.expand_as(target), target, non_blocking);
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  if (source.sizes() != target.sizes()) target.resize_(source.sizes());
  copy_late(source, target, false);
  return target;
}

at::Scalar local_scalar_dense(const Tensor& tensor) {
  const Lock lock;
  const c10::Stream stream = current_stream(tensor.device().index());
  synchronize(stream);
  touch(stream, {range_of(tensor, false)});
  const PlainOperators plain;
  return at::_local_scalar_dense(in_shadow(tensor));
}

// Room for the tensor as it is.
void grow(const Tensor& tensor) {
  const std::size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                             static_cast<std::size_t>(tensor.storage_offset()));
  if (tensor.numel() > 0 && bytes > tensor.storage().nbytes()) resize_storage(tensor.storage(), bytes);
}

const Tensor& resize(const Tensor& tensor, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->generic_set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  grow(tensor);
  return tensor;
}

Tensor& set_storage(Tensor& tensor, at::Storage source, std::int64_t offset, at::IntArrayRef sizes,
                    at::IntArrayRef strides) {
  at::native::checkSetStorage(tensor, std::move(source), offset, sizes, strides);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (strides.data())
    impl->set_sizes_and_strides(sizes, strides);
  else
    impl->generic_set_sizes_contiguous(sizes);
  grow(tensor);
  return tensor;
}

Tensor& set_whole_storage(Tensor& tensor, at::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / tensor.itemsize());
  return set_storage(tensor, std::move(source), 0, {elements}, {});
}

Tensor& set_tensor(Tensor& tensor, const Tensor& source) {
  if (tensor.is_same(source)) return tensor;
  return set_storage(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& tensor) {
  c10::Storage nothing(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, tensor.device()),
                       c10::GetAllocator(kType), true);
  return set_storage(tensor, std::move(nothing), 0, {0}, {});
}

void record(Tensor& tensor, c10::Stream stream) {
  record_stream(tensor.storage().data(), stream);
}

bool is_plain(const Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_quantized();
}

// Without it Module::to() does not move a parameter.
bool has_compatible_type(const Tensor& a, const Tensor& b) {
  return is_plain(a) && is_plain(b);
}

// The mathematical one.
std::int64_t attention_choice(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                              std::optional<double>, bool) {
  return 0;
}

// As LibTorch's dropout on the CPU, in bits.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), input.ne(input).logical_not_()};
  Tensor noise = at::empty_like(input);
  if (p < 1)
    noise.bernoulli_(1 - p).div_(1 - p);
  else
    noise.zero_();
  return {input.mul(noise), noise.ne(0)};
}

Tensor native_dropout_backward(const Tensor& gradient, const Tensor& mask, double scale) {
  return gradient.mul(mask.to(gradient.scalar_type()).div_(1 / scale));
}

const c10::OperatorHandle& aten(const char* name) {
  static auto* const kFound = new std::map<std::string, c10::OperatorHandle>;
  const Lock lock;
  return kFound->try_emplace(name, c10::Dispatcher::singleton().findSchemaOrThrow(name, "")).first->second;
}

void convolution(const c10::OperatorHandle& op, Stack* stack) {
  call_on_host(op, aten("aten::convolution"), *stack);
}

// The CPU's has one argument more, the fourth: the sizes of the bias.
void convolution_backward(const c10::OperatorHandle&, Stack* stack) {
  const auto first = static_cast<std::ptrdiff_t>(stack->size()) - 10;
  const std::int64_t channels = (*stack)[static_cast<std::size_t>(first)].toTensor().size(1);
  stack->insert(stack->begin() + first + 3, c10::IValue(std::vector<std::int64_t>{channels}));
  call_on_host(aten("aten::convolution_backward"), aten("aten::convolution_backward"), *stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("resize_", TORCH_FN(resize));
  library.impl("set_", TORCH_FN(set_nothing));
  library.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  library.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  library.impl("record_stream", TORCH_FN(record));
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
  library.impl("_fused_sdp_choice", TORCH_FN(attention_choice));
  library.impl("native_dropout", TORCH_FN(native_dropout));
  library.impl("native_dropout_backward", TORCH_FN(native_dropout_backward));
  library.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace
}  // namespace zero::test::accelerator

#include "state/accounts.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "state/window.h"
#include "tier/arena_allocator.h"

namespace zero {

namespace {

bool lasts(Owner owner) {
  return owner == Owner::parameter || owner == Owner::gradient || owner == Owner::optimizer;
}

}  // namespace

void Accounts::reset_peaks() {
  std::lock_guard lock(mutex_);
  for (Ledger::Entry& entry : ledger_.entries) entry.peak = entry.bytes;
  ledger_.peak_held = ledger_.held();
  ledger_.peak_total = ledger_.total();
}

// Memory of the CPU comes past LibTorch's memory reports, which see activations only.
Buffer::Buffer(Accounts& accounts, Owner owner, std::int64_t count, at::ScalarType dtype, at::Device device)
    : accounts_(&accounts), owner_(owner) {
  const window::Blind blind;
  // Inside a user's InferenceMode the memory must still be an ordinary tensor.
  c10::InferenceMode ordinary(false);
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  if (device.is_cpu() && count > 0) {
    const std::size_t bytes = static_cast<std::size_t>(count) * c10::elementSize(dtype);
    auto memory = lasts(owner) ? lasting_memory(bytes) : host_memory(bytes);
    void* const data = memory.get();
    tensor_ = at::from_blob(
        data, {count}, [memory = std::move(memory)](void*) {}, options);
  } else {
    tensor_ = at::empty({count}, options);
  }
  book();
}

Buffer::Buffer(Accounts& accounts, Owner owner, std::int64_t count, at::ScalarType dtype, std::shared_ptr<void> memory)
    : accounts_(&accounts), owner_(owner) {
  const window::Blind blind;
  c10::InferenceMode ordinary(false);
  void* const data = memory.get();
  tensor_ = at::from_blob(
      data, {count}, [memory = std::move(memory)](void*) {}, at::TensorOptions().dtype(dtype));
  book();
}

Buffer Buffer::visible(Accounts& accounts, Owner owner, std::int64_t count, at::ScalarType dtype, at::Device device) {
  const auto bytes = count * static_cast<std::int64_t>(c10::elementSize(dtype));
  auto memory = device.is_cpu() && bytes > 0 ? accounts.own_memory(bytes) : nullptr;
  if (memory == nullptr) return {accounts, owner, count, dtype, device};
  return {accounts, owner, count, dtype, std::move(memory)};
}

void Buffer::book() {
  data_ = tensor_.mutable_data_ptr();
  accounts_->add(owner_, static_cast<std::int64_t>(tensor_.nbytes()));
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  accounts_ = std::exchange(other.accounts_, nullptr);
  owner_ = other.owner_;
  tensor_ = std::exchange(other.tensor_, at::Tensor());
  data_ = std::exchange(other.data_, nullptr);
  return *this;
}

void Buffer::reset() {
  if (!tensor_.defined()) return;
  take();
}

at::Tensor Buffer::take() {
  if (accounts_ != nullptr && tensor_.defined()) accounts_->add(owner_, -static_cast<std::int64_t>(tensor_.nbytes()));
  accounts_ = nullptr;
  data_ = nullptr;
  return std::exchange(tensor_, at::Tensor());
}

}  // namespace zero

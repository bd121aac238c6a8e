#include "state/accounts.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "memory/torch/arena_allocator.h"
#include "state/window.h"

namespace zero {

namespace {

bool lasts(Owner owner) {
  return owner == Owner::parameter || owner == Owner::gradient || owner == Owner::optimizer;
}

}  // namespace

void Accounts::add(Account account, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  ledger_.add(account.owner, bytes);
  const auto row = static_cast<std::size_t>(account.unit + 1);
  if (row >= units_.size()) units_.resize(row + 1);
  units_[row][static_cast<std::size_t>(account.owner)] += bytes;
  if (account.owner == Owner::activation) return;
  if (const auto observer = observer_.lock()) observer->booked(account.owner, account.unit, bytes);
}

void Accounts::adopt(const void* holder, std::vector<const void*> memory) {
  std::lock_guard lock(mutex_);
  if (const auto observer = observer_.lock())
    for (const void* data : memory) observer->adopted(data);
  if (memory.empty()) {
    adopted_.erase(holder);
  } else {
    adopted_[holder] = std::move(memory);
  }
}

void Accounts::observe(std::weak_ptr<EngineObserver> observer) {
  std::lock_guard lock(mutex_);
  tell_all(-1);
  observer_ = std::move(observer);
  if (const auto now = observer_.lock())
    for (const auto& [holder, memory] : adopted_)
      for (const void* data : memory) now->adopted(data);
  tell_all(1);
}

// Books what is held, or takes it back.
void Accounts::tell_all(int sign) const {
  const auto observer = observer_.lock();
  if (!observer) return;
  for (std::size_t row = 0; row < units_.size(); ++row)
    for (int i = 0; i < kOwners; ++i) {
      const auto owner = static_cast<Owner>(i);
      const std::int64_t bytes = units_[row][static_cast<std::size_t>(i)];
      if (owner != Owner::activation && bytes != 0) observer->booked(owner, static_cast<int>(row) - 1, sign * bytes);
    }
}

Accounts::~Accounts() {
  tell_all(-1);
}

void Accounts::reset_peaks() {
  std::lock_guard lock(mutex_);
  for (Ledger::Entry& entry : ledger_.entries) entry.peak = entry.bytes;
  ledger_.peak_held = ledger_.held();
  ledger_.peak_total = ledger_.total();
}

// Memory of the CPU comes past LibTorch's memory reports, which see activations only.
Buffer::Buffer(Accounts& accounts, Account account, std::int64_t count, at::ScalarType dtype, at::Device device)
    : accounts_(&accounts), account_(account) {
  const window::Blind blind;
  // Inside a user's InferenceMode the memory must still be an ordinary tensor.
  c10::InferenceMode ordinary(false);
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  if (device.is_cpu() && count > 0) {
    const std::size_t bytes = static_cast<std::size_t>(count) * c10::elementSize(dtype);
    auto memory = lasts(account.owner) ? lasting_memory(bytes) : host_memory(bytes);
    void* const data = memory.get();
    tensor_ = at::from_blob(
        data, {count}, [memory = std::move(memory)](void*) {}, options);
  } else {
    tensor_ = at::empty({count}, options);
  }
  book();
}

Buffer::Buffer(Accounts& accounts, Account account, std::int64_t count, at::ScalarType dtype,
               std::shared_ptr<void> memory)
    : accounts_(&accounts), account_(account) {
  const window::Blind blind;
  c10::InferenceMode ordinary(false);
  void* const data = memory.get();
  memory = counted(std::move(memory), static_cast<std::size_t>(count) * c10::elementSize(dtype));
  tensor_ = at::from_blob(
      data, {count}, [memory = std::move(memory)](void*) {}, at::TensorOptions().dtype(dtype));
  book();
}

Buffer Buffer::visible(Accounts& accounts, Account account, std::int64_t count, at::ScalarType dtype,
                       at::Device device) {
  const auto bytes = count * static_cast<std::int64_t>(c10::elementSize(dtype));
  auto memory = device.is_cpu() && bytes > 0 ? accounts.own_memory(bytes) : nullptr;
  if (memory == nullptr) return {accounts, account, count, dtype, device};
  return {accounts, account, count, dtype, std::move(memory)};
}

void Buffer::book() {
  data_ = tensor_.mutable_data_ptr();
  accounts_->add(account_, static_cast<std::int64_t>(tensor_.nbytes()));
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  accounts_ = std::exchange(other.accounts_, nullptr);
  account_ = other.account_;
  tensor_ = std::exchange(other.tensor_, at::Tensor());
  data_ = std::exchange(other.data_, nullptr);
  return *this;
}

void Buffer::reset() {
  if (!tensor_.defined()) return;
  take();
}

at::Tensor Buffer::take() {
  if (accounts_ != nullptr && tensor_.defined()) accounts_->add(account_, -static_cast<std::int64_t>(tensor_.nbytes()));
  accounts_ = nullptr;
  data_ = nullptr;
  return std::exchange(tensor_, at::Tensor());
}

}  // namespace zero

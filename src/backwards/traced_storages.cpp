#include "backwards/traced_storages.h"

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "backwards/activation_window.h"
#include "base/random.h"
#include "zero/error.h"

namespace zero {
namespace {

// Of a result's storage, those bytes that have values: not what a kernel used before, nor the workspaces of libraries.
std::size_t checked_bytes(const at::Tensor& result) {
  if (result.scalar_type() == at::kByte || result.storage_offset() != 0 || !result.is_non_overlapping_and_dense())
    return 0;
  return result.nbytes();
}

// Of all bytes, in words of eight, along four chains.
std::uint64_t digest_of(const void* data, std::size_t bytes) {
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
  std::array<std::uint64_t, 4> chains{1, 2, 3, 4};
  const auto* const from = static_cast<const unsigned char*>(data);
  std::size_t i = 0;
  for (; i + sizeof chains <= bytes; i += sizeof chains) {
    std::array<std::uint64_t, 4> words;
    std::memcpy(words.data(), from + i, sizeof words);
    for (std::size_t k = 0; k < chains.size(); ++k) chains[k] = (chains[k] ^ words[k]) * kFactor;
  }
  std::uint64_t digest = bytes;
  for (const std::uint64_t chain : chains) digest = derived(digest, chain);
  for (; i < bytes; ++i) digest = derived(digest, from[i]);
  return digest;
}

}  // namespace

// What a traced storage's data pointer has as context.
struct TracedStorages::Tag {
  std::shared_ptr<ActivationWindow> window;
  TracedStorages* storages;
  int number;
};

ActivationWindow* TracedStorages::window_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) return nullptr;
  const c10::DataPtr& pointer = impl_of(tensor)->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &end ? static_cast<const Tag*>(pointer.get_context())->window.get() : nullptr;
}

std::optional<int> TracedStorages::number_of(const at::Tensor& tensor) const {
  if (!tensor.unsafeGetTensorImpl()->has_storage()) return {};
  const c10::DataPtr& pointer = impl_of(tensor)->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() != &end) return {};
  const Tag& tag = *static_cast<const Tag*>(pointer.get_context());
  return tag.storages == this ? std::optional(tag.number) : std::nullopt;
}

void TracedStorages::add(const at::Tensor& result, bool allocated, std::shared_ptr<ActivationWindow> window) {
  c10::StorageImpl& storage = *impl_of(result);
  Traced& its = all_.emplace_back();
  its.storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage);
  its.bytes = storage.nbytes();
  its.dtype = result.scalar_type();
  its.checked = checked_bytes(result);
  its.unwritten = allocated ? its.bytes : 0;
  const c10::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
  auto* const tag = new Tag{std::move(window), this, static_cast<int>(all_.size()) - 1};
  its.memory = storage.set_data_ptr(c10::DataPtr(pointer.get(), tag, &end, pointer.device()));
}

void TracedStorages::drop(int number, bool checks) {
  Traced& its = at(number);
  if (checks) its.digest = digest_of(its.memory.get(), its.checked);
  if (const auto storage = its.storage.lock()) {
    void* const tag = storage->_mutable_data_ptr_no_checks().get_context();
    storage->set_data_ptr(c10::DataPtr(nullptr, tag, &end, storage->device())).release_context();
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "zero: an activation that was dropped to keep within the activation budget is read without an operator (" +
        std::string(kKeep) + ")");
  }
  its.missing = true;
  ++missing_;
  its.memory.clear();
}

bool TracedStorages::give(int number, const c10::Storage& from) {
  Traced& its = at(number);
  if (from.nbytes() != its.bytes) throw StateError("an activation came back in another size", kKeep);
  its.memory = from.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, from.device()));
  if (const auto storage = its.storage.lock()) {
    void* const tag = storage->_mutable_data_ptr_no_checks().get_context();
    storage->set_data_ptr(c10::DataPtr(its.memory.get(), tag, &end, its.memory.device())).release_context();
    storage->clear_data_ptr_access_error_msg_();
  }
  its.missing = false;
  --missing_;
  const auto digest = std::exchange(its.digest, std::nullopt);
  return !digest || *digest == digest_of(its.memory.get(), its.checked);
}

bool TracedStorages::alike(int number, const c10::Storage& from) const {
  const Traced& its = at(number);
  return !its.digest || *its.digest == digest_of(from.data(), its.checked);
}

c10::Storage TracedStorages::get(int number) const {
  const Traced& its = at(number);
  if (auto strong = its.storage.lock()) return c10::Storage(std::move(strong));
  return {c10::Storage::use_byte_size_t(), its.bytes, c10::DataPtr(its.memory.get(), its.memory.device()), nullptr,
          /*resizable=*/false};
}

bool TracedStorages::written(int number, std::size_t bytes) {
  Traced& its = at(number);
  if (its.unwritten == 0) return false;
  its.unwritten -= std::min(its.unwritten, bytes);
  return its.unwritten == 0;
}

void TracedStorages::end(void* context) {
  const std::unique_ptr<Tag> tag(static_cast<Tag*>(context));
  tag->storages->ended(tag->number);
}

void TracedStorages::ended(int number) {
  if (!here()) {
    const std::lock_guard lock(mutex_);
    ended_elsewhere_.push_back(number);
    any_ended_elsewhere_ = true;
    return;
  }
  Traced& its = at(number);
  its.storage.reset();
  if (gone_) return its.memory.clear();
  if (std::exchange(its.missing, false)) --missing_;
  window_.ended(number);
}

void TracedStorages::bury() {
  if (!any_ended_elsewhere_) return;
  std::vector<int> numbers;
  {
    const std::lock_guard lock(mutex_);
    numbers.swap(ended_elsewhere_);
    any_ended_elsewhere_ = false;
  }
  for (const int number : numbers) ended(number);
}

void TracedStorages::require_here() const {
  if (!here())
    throw StateError("an activation that was dropped to keep within the activation budget is read on another thread",
                     kKeep);
}

void TracedStorages::let_go() noexcept {
  gone_ = true;
  for (Traced& its : all_) {
    if (const auto storage = its.storage.lock()) {
      const std::unique_ptr<Tag> tag(static_cast<Tag*>(storage->_mutable_data_ptr_no_checks().get_context()));
      storage->set_data_ptr(std::move(its.memory)).release_context();
    }
    its.storage.reset();
    its.memory.clear();
  }
}

}  // namespace zero

#include "backwards/accounts.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "backwards/unwatched.h"
#include "device/torch/devices.h"
#include "device/torch/torch_device.h"
#include "memory/torch/arena_allocator.h"
#include "memory/torch/device_reports.h"

namespace zero {

namespace {

Device::Use use_of(Owner owner) {
  const bool lasts = owner == Owner::parameter || owner == Owner::gradient || owner == Owner::optimizer;
  return lasts ? Device::Use::lasting : Device::Use::passing;
}

std::optional<Accounts::Arena> arena_of(Owner owner) {
  switch (owner) {
    case Owner::parameter:
    case Owner::optimizer: return Accounts::Arena::states;
    case Owner::gradient: return Accounts::Arena::gradients;
    case Owner::gathered:
    case Owner::reduction: return Accounts::Arena::passing;
    default: return {};
  }
}

}  // namespace

Accounts::Accounts(c10::Device device, Communicator readers, Communicator owners, DiskOptions disk)
    : where_(device),
      device_(device_at(device)),
      host_(device_at(at::kCPU)),
      readers_(std::move(readers)),
      owners_(std::move(owners)),
      disk_(std::move(disk)),
      passing_(Tier::device, lasting(), book()),
      passing_host_(
          Tier::host, [this](std::size_t bytes) { return device_.take_of_host(bytes); }, book()) {}

std::shared_ptr<void> Accounts::own_memory(std::int64_t bytes) const {
  return device_.is_host() ? readers_.own_memory(bytes) : nullptr;
}

std::shared_ptr<void> Accounts::common_memory(std::int64_t bytes) const {
  return device_.is_host() ? owners_.common_memory(bytes) : nullptr;
}

void Accounts::exhausted(const c10::OutOfMemoryError& error, const char* during) const {
  if (!explain_) throw error;
  const std::string what = error.what_without_backtrace();
  throw explain_(what.substr(0, what.find('\n')), during);
}

void Accounts::add(Account account, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  books_.ledger.add(account.owner, bytes);
  const auto row = static_cast<std::size_t>(account.unit + 1);
  if (row >= books_.units.size()) books_.units.resize(row + 1);
  books_.units[row][static_cast<std::size_t>(account.owner)] += bytes;
  if (account.owner == Owner::activation) return;
  if (const auto observer = observer_.lock()) observer->booked(account.owner, account.unit, bytes);
}

void Accounts::adopt(const void* holder, std::vector<const void*> memory) {
  std::lock_guard lock(mutex_);
  if (const auto observer = observer_.lock())
    for (const void* data : memory) observer->adopted(data);
  if (memory.empty()) {
    books_.adopted.erase(holder);
  } else {
    books_.adopted[holder] = std::move(memory);
  }
}

void Accounts::observe(std::weak_ptr<EngineObserver> observer) {
  std::lock_guard lock(mutex_);
  tell_all(-1);
  observer_ = std::move(observer);
  if (const auto now = observer_.lock())
    for (const auto& [holder, memory] : books_.adopted)
      for (const void* data : memory) now->adopted(data);
  tell_all(1);
}

// Books what is held, or takes it back.
void Accounts::tell_all(int sign) const {
  const auto observer = observer_.lock();
  if (!observer) return;
  for (std::size_t row = 0; row < books_.units.size(); ++row)
    for (int i = 0; i < kOwners; ++i) {
      const auto owner = static_cast<Owner>(i);
      const std::int64_t bytes = books_.units[row][static_cast<std::size_t>(i)];
      if (owner != Owner::activation && bytes != 0) observer->booked(owner, static_cast<int>(row) - 1, sign * bytes);
    }
}

Accounts::~Accounts() {
  tell_all(-1);
}

void Accounts::reset_peaks() {
  std::lock_guard lock(mutex_);
  const auto reset = [](auto& row) {
    for (Ledger::Entry& entry : row) entry.peak = entry.bytes;
  };
  reset(books_.ledger.entries);
  std::ranges::for_each(books_.ledger.below, reset);
  books_.ledger.peak_held = books_.ledger.held();
  books_.ledger.peak_total = books_.ledger.total();
}

// Past LibTorch's memory reports, which see activations only.
std::unique_ptr<Block::Place> Accounts::unreported(std::size_t bytes, Device::Use use) const {
  const Booking booking;
  return device_.take(bytes, use);
}

Block Accounts::take(std::int64_t bytes, Account account) {
  return booked(place_for(static_cast<std::size_t>(bytes), arena_of(account.owner), use_of(account.owner)), bytes,
                account, over_link(account.owner));
}

std::unique_ptr<Block::Place> Accounts::place_for(std::size_t bytes, std::optional<Arena> arena, Device::Use use) {
  Device::Arena* const from = arena && bytes > 0 ? reserved(*arena) : nullptr;
  auto place = from == nullptr ? nullptr : from->take(bytes);
  return place ? std::move(place) : unreported(bytes, use);
}

Device::Arena* Accounts::reserved(Arena arena) {
  const std::lock_guard lock(reserving_);
  Reserve& reserve = reserves_[static_cast<std::size_t>(arena)];
  if (!reserve.arena && reserve.bytes > 0) {
    const Booking booking;
    reserve.arena = device_.arena(reserve.bytes);
  }
  return reserve.arena.get();
}

void Accounts::set_aside(Arena arena, std::int64_t bytes, std::int64_t blocks) {
  if (device_.is_host() || bytes == 0) return;
  reserves_[static_cast<std::size_t>(arena)].bytes = static_cast<std::size_t>(bytes + blocks * Device::Arena::kAlign);
}

Block Accounts::take_of_host(std::int64_t bytes, Account account) {
  return booked(lasting_of_host()(static_cast<std::size_t>(bytes)), bytes, account);
}

std::shared_ptr<void> Accounts::readable_memory(std::int64_t bytes) const {
  auto memory = bytes > 0 ? own_memory(bytes) : nullptr;
  return memory == nullptr
             ? nullptr
             : counted(filled(std::move(memory), static_cast<std::size_t>(bytes)), static_cast<std::size_t>(bytes));
}

Block Accounts::take_visible(std::int64_t bytes, Account account) {
  auto memory = readable_memory(bytes);
  return memory == nullptr ? take(bytes, account) : take(std::move(memory), bytes, account);
}

Block Accounts::take(std::shared_ptr<void> memory, std::int64_t bytes, Account account) {
  return booked(in_memory(std::move(memory)), bytes, account);
}

Block Accounts::take_common(std::shared_ptr<void> memory, std::int64_t bytes, Account account) {
  return take(counted(std::move(memory), static_cast<std::size_t>(bytes)), bytes, account);
}

Block Accounts::booked(std::unique_ptr<Block::Place> place, std::int64_t bytes, Account account, Block::Count count) {
  return {std::move(place), bytes, [this, account](std::int64_t change) { add(account, change); }, std::move(count)};
}

Block::Count Accounts::over_link(Owner owner) {
  if (device_.is_host()) return {};
  return [this, owner](const TierTraffic::Entry& moved) { tiers_.count(Tier::device, owner, moved); };
}

Buffer Accounts::buffer(Account account, std::int64_t count, at::ScalarType dtype) {
  return {take(count * static_cast<std::int64_t>(c10::elementSize(dtype)), account), dtype, where_};
}

Buffer Accounts::visible_buffer(Account account, std::int64_t count, at::ScalarType dtype) {
  return {take_visible(count * static_cast<std::int64_t>(c10::elementSize(dtype)), account), dtype, where_};
}

Store::Book Accounts::book() {
  return [this](Owner owner, int unit, Tier tier, std::int64_t bytes) {
    if (tier == Tier::device) return add({owner, unit}, bytes);
    const std::lock_guard lock(mutex_);
    books_.ledger.add(owner, bytes, tier);
  };
}

std::unique_ptr<Store> Accounts::store(State state, Tier tier, AddressableStore::Allocate allocate) {
  if (tier == Tier::host) allocate = lasting_of_host();
  if (tier == Tier::host && state == State::parameter)
    allocate = [this](std::size_t bytes) { return device_.take_of_host(bytes); };
  auto store = make_store(state, tier, std::move(allocate), book(), {passing(host_), disk_});
  if (store->tier() == Tier::disk || (store->tier() == Tier::device && !device_.is_host())) store->meter_by(tiers_);
  return store;
}

UnitStores Accounts::stores(State state, Tier tier, const AddressableStore::Allocate& allocate,
                            std::vector<char> staying) {
  const bool any = tier != Tier::device && std::ranges::find(staying, char{1}) != staying.end();
  auto below = store(state, tier, allocate);
  return {std::move(below), any ? store(state, Tier::device, allocate) : nullptr, std::move(staying)};
}

Staging Accounts::staging(const Device& computing, const StagingShape& shape) {
  return {passing(computing), shape, computing.index()};
}

Block Accounts::borrowed(const void* memory, std::int64_t bytes, Owner owner) {
  return {device_.borrowed(const_cast<void*>(memory)), bytes, [](std::int64_t) {}, over_link(owner)};
}

AddressableStore::Allocate Accounts::lasting_of_host() const {
  return [](std::size_t bytes) { return in_memory(bytes == 0 ? nullptr : lasting_memory(bytes)); };
}

AddressableStore::Allocate Accounts::lasting(std::optional<Arena> arena) {
  return [this, arena](std::size_t bytes) { return place_for(bytes, arena, Device::Use::lasting); };
}

AddressableStore::Allocate Accounts::lasting_visible(std::optional<Arena> arena) {
  return [this, arena](std::size_t bytes) {
    auto memory = readable_memory(static_cast<std::int64_t>(bytes));
    return memory == nullptr ? place_for(bytes, arena, Device::Use::lasting) : in_memory(std::move(memory));
  };
}

Buffer::Buffer(Block block, at::ScalarType dtype, c10::Device where) : block_(std::move(block)) {
  const Unwatched unwatched;
  // Inside a user's InferenceMode the memory must still be an ordinary tensor.
  c10::InferenceMode ordinary(false);
  const std::int64_t count = block_.bytes() / static_cast<std::int64_t>(c10::elementSize(dtype));
  tensor_ = count > 0 ? tensor_at(where, data(), dtype, count)
                      : at::empty({0}, at::TensorOptions().dtype(dtype).device(where));
}

void Buffer::reset() {
  tensor_.reset();
  block_.reset();
}

std::shared_ptr<void> Buffer::release() {
  tensor_.reset();
  return block_.release();
}

}  // namespace zero

#include "memory/store.h"

#include <cstring>
#include <string>
#include <utility>

#include "memory/disk_store.h"

namespace zero {
namespace {

class HostPlace final : public Block::Place {
 public:
  explicit HostPlace(std::shared_ptr<void> memory) : memory_(std::move(memory)) {}

  void* data() override { return memory_.get(); }
  Pending read(std::int64_t at, View to) override {
    std::memcpy(to.data, bytes() + at, static_cast<std::size_t>(to.bytes()));
    return {};
  }
  Pending write(std::int64_t at, ConstView from) override {
    std::memcpy(bytes() + at, from.data, static_cast<std::size_t>(from.bytes()));
    return {};
  }

 private:
  char* bytes() const { return static_cast<char*>(memory_.get()); }

  std::shared_ptr<void> memory_;
};

thread_local MakeStore replacement;

}  // namespace

Block::Block(std::unique_ptr<Place> place, std::int64_t bytes, std::function<void(std::int64_t)> book, Count count)
    : place_(std::move(place)), bytes_(bytes), book_(std::move(book)), count_(std::move(count)) {
  book_(bytes_);
}

Block::Block(Block&& other) noexcept {
  *this = std::move(other);
}

Block& Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  reset();
  place_ = std::move(other.place_);
  bytes_ = std::exchange(other.bytes_, 0);
  book_ = std::exchange(other.book_, nullptr);
  count_ = std::exchange(other.count_, nullptr);
  return *this;
}

void Block::reset() {
  if (!place_) return;
  place_.reset();
  const std::int64_t bytes = std::exchange(bytes_, 0);
  if (const auto book = std::exchange(book_, nullptr)) book(-bytes);
}

std::shared_ptr<void> Block::release() {
  const std::shared_ptr<Place> place = std::move(place_);
  void* const data = place ? place->data() : nullptr;
  const std::int64_t bytes = std::exchange(bytes_, 0);
  if (const auto book = std::exchange(book_, nullptr)) book(-bytes);
  return {place, data};
}

void Block::require(std::int64_t at, std::int64_t bytes) const {
  if (at >= 0 && bytes >= 0 && at <= bytes_ - bytes) return;
  throw StoreError(std::to_string(bytes) + " bytes from byte " + std::to_string(at) + " on, of a block of " +
                   std::to_string(bytes_));
}

Pending Block::read(std::int64_t at, View to) const {
  require(at, to.bytes());
  if (count_) count_({.read = to.bytes()});
  return to.count == 0 ? Pending() : place_->read(at, to);
}

Pending Block::write(std::int64_t at, ConstView from) {
  require(at, from.bytes());
  if (count_) count_({.written = from.bytes()});
  return from.count == 0 ? Pending() : place_->write(at, from);
}

Block Store::take(std::int64_t bytes, Owner owner, int unit) {
  if (bytes < 0) throw StoreError("a block of " + std::to_string(bytes) + " bytes");
  Block::Count count;
  if (meter_ != nullptr) count = [this, owner](const TierTraffic::Entry& moved) { meter_->count(tier_, owner, moved); };
  return {provide(bytes, owner, unit), bytes,
          [this, owner, unit](std::int64_t change) { book_(owner, unit, tier_, change); }, std::move(count)};
}

std::unique_ptr<Block::Place> AddressableStore::provide(std::int64_t bytes, Owner /*owner*/, int /*unit*/) {
  return allocate_(static_cast<std::size_t>(bytes));
}

std::unique_ptr<Block::Place> in_memory(std::shared_ptr<void> memory) {
  return std::make_unique<HostPlace>(std::move(memory));
}

std::unique_ptr<Store> make_store(State state, Tier tier, AddressableStore::Allocate allocate, Store::Book book,
                                  const DiskSetup& disk) {
  if (replacement)
    if (auto store = replacement(state, book)) return store;
  if (tier == Tier::disk) return std::make_unique<DiskStore>(disk.options, disk.memory, std::move(book));
  return std::make_unique<AddressableStore>(tier, std::move(allocate), std::move(book));
}

void replace_stores(MakeStore make) {
  replacement = std::move(make);
}

}  // namespace zero

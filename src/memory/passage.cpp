#include "memory/passage.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/round_up.h"

namespace zero {
namespace {

constexpr std::int64_t kAlign = 64;

// Where a part goes in a buffer of which so much is taken.
std::int64_t next_place(const StagingShape& shape, std::int64_t taken, const BlockPart& part) {
  return shape.page > 1 ? round_up(taken, shape.page) + part.at % shape.page : round_up(taken, kAlign);
}

void* place(const BlockPart& part) {
  return part.block == nullptr ? nullptr : static_cast<char*>(part.block->view().data) + part.at;
}

}  // namespace

char* Staging::buffer(std::size_t which) {
  Block& block = buffers_[which];
  if (!block) block = memory_.take(shape_.allocated(), Owner::update);
  auto* const begin = static_cast<char*>(block.view().data);
  const auto beyond =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin) % static_cast<std::uintptr_t>(shape_.page));
  return begin + (shape_.page - beyond) % shape_.page;
}

Passage::~Passage() {
  for (Turn& turn : turns_)
    for (Pending& pending : turn.under_way) {
      try {
        pending.wait();
      } catch (...) {
        // The passage is left by the first failure, or by another exception.
      }
    }
}

void Passage::settle(Turn& turn) {
  for (Pending& pending : turn.under_way) pending.wait();
  turn.under_way.clear();
}

bool Passage::in_place(std::span<const BlockPart> parts, std::span<void*> arrays) const {
  if (parts.size() > arrays.size()) throw StoreError(std::to_string(parts.size()) + " parts at once");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!staging_.finds(parts[i])) return false;
    arrays[i] = place(parts[i]);
  }
  return true;
}

void Passage::begin(std::span<const BlockPart> parts, Work work) {
  Turn& turn = turns_[next_ % turns_.size()];
  settle(turn);
  turn = {{parts.begin(), parts.end()}, {}, std::move(work), {}, {}};
  bring(turn, staging_.buffer(next_ % turns_.size()));
  if (Turn& before = turns_[(next_ + turns_.size() - 1) % turns_.size()]; before.work) carry_out(before);
  ++next_;
}

void Passage::bring(Turn& turn, char* buffer) {
  std::int64_t taken = 0;
  for (const BlockPart& part : turn.parts) {
    const std::int64_t begin = next_place(staging_.shape(), taken, part);
    turn.arrays.push_back(staging_.finds(part) ? place(part) : buffer + begin);
    if (staging_.finds(part)) continue;
    taken = begin + part.bytes;
    if (taken > staging_.shape().bytes())
      throw StoreError("parts of " + std::to_string(taken) + " bytes for a buffer of " +
                       std::to_string(staging_.shape().bytes()));
    const View view{turn.arrays.back(), part.bytes, Dtype::u8};
    if (part.way != Way::out) turn.under_way.push_back(part.block->read(part.at, view));
  }
}

void Passage::carry_out(Turn& turn) {
  settle(turn);
  const Work work = std::exchange(turn.work, nullptr);  // which may keep what parts are of
  work(turn.arrays);
  for (std::size_t i = 0; i < turn.parts.size(); ++i) {
    const BlockPart& part = turn.parts[i];
    if (!staging_.finds(part) && part.way != Way::in)
      turn.under_way.push_back(part.block->write(part.at, {turn.arrays[i], part.bytes, Dtype::u8}));
  }
  if (const auto call = std::exchange(turn.then, nullptr)) call();
}

void Passage::then(std::function<void()> call) {
  Turn& latest = turns_[(next_ + turns_.size() - 1) % turns_.size()];
  if (!latest.work) return call();
  latest.then = [before = std::move(latest.then), after = std::move(call)] {
    if (before) before();
    after();
  };
}

void Passage::finish() {
  for (std::size_t i = 0; i < turns_.size(); ++i)
    if (Turn& turn = turns_[(next_ + i) % turns_.size()]; turn.work) carry_out(turn);
  std::ranges::for_each(turns_, &Passage::settle);
}

void each_stretch(Staging& staging, std::int64_t count, const PartsOf& parts, const StretchWork& work) {
  Passage passage(staging);
  each_stretch(passage, count, parts, work);
  passage.finish();
}

void each_stretch(Passage& passage, std::int64_t count, const PartsOf& parts, const StretchWork& work) {
  const Staging& staging = passage.staging();
  const std::vector<BlockPart> all = parts(0, count);
  const auto staged = std::ranges::count_if(all, [&](const BlockPart& part) { return !staging.finds(part); });
  const std::int64_t most = staged == 0 ? count : staging.shape().elements_of(staged);
  for (std::int64_t first = 0; first < count; first += most) {
    const std::int64_t some = std::min(most, count - first);
    const std::vector<BlockPart> stretch = some == count ? all : parts(first, some);
    passage.pass(stretch, [work, first, some](std::span<void* const> arrays) { work(arrays, first, some); });
  }
}

}  // namespace zero

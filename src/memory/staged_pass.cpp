#include "memory/staged_pass.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "base/elements.h"

namespace zero {
namespace {

constexpr std::int64_t kAlign = 64;

// Where bytes of a block go in a buffer of which so much is taken.
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

StagedPass::~StagedPass() {
  for (Turn& turn : turns_)
    for (Pending& pending : turn.under_way) {
      try {
        pending.wait();
      } catch (...) {
        // The passage is left by the first failure, or by another exception.
      }
    }
}

void StagedPass::settle(Turn& turn) {
  for (Pending& pending : turn.under_way) pending.wait();
  turn.under_way.clear();
}

bool StagedPass::in_place(std::span<const BlockPart> parts, std::span<void*> arrays) const {
  if (parts.size() > arrays.size()) throw StoreError(std::to_string(parts.size()) + " parts at once");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!staging_.reachable(parts[i])) return false;
    arrays[i] = place(parts[i]);
  }
  return true;
}

void StagedPass::begin(std::span<const BlockPart> parts, Work work) {
  if (!open_.jobs.empty() && !has_room(parts)) close();
  add(parts, std::move(work));
  if (!joins_) close();
}

// The operation whose bytes end where the part begins: of this pass() or the one before.
BlockPart* StagedPass::continued_by(const BlockPart& part, std::vector<BlockPart>& operations) {
  const std::size_t looked_at = std::min(operations.size(), 2 * kParts);
  for (BlockPart& each : std::span(operations).last(looked_at))
    if (each.block == part.block && each.way == part.way && each.at + each.bytes == part.at) return &each;
  return nullptr;
}

// In a buffer, with what is lost between operations.
std::int64_t StagedPass::room_for(const BlockPart& part) const {
  const std::int64_t page = staging_.shape().page;
  return page > 1 ? round_up(part.at % page + part.bytes, page) : round_up(part.bytes, kAlign);
}

bool StagedPass::has_room(std::span<const BlockPart> parts) {
  std::int64_t room = open_.room;
  for (const BlockPart& part : parts) {
    if (staging_.reachable(part)) continue;
    BlockPart grown = part;
    if (const BlockPart* const before = continued_by(part, open_.operations)) {
      grown = {part.block, before->at, before->bytes + part.bytes, part.way};
      room -= room_for(*before);
    }
    room += room_for(grown);
  }
  return room <= staging_.shape().bytes();
}

void StagedPass::add(std::span<const BlockPart> parts, Work work) {
  Job job{{}, std::move(work)};
  for (const BlockPart& part : parts) {
    if (staging_.reachable(part)) {
      job.arrays.push_back({.place = place(part)});
      continue;
    }
    BlockPart* operation = continued_by(part, open_.operations);
    if (operation == nullptr) operation = &open_.operations.emplace_back(BlockPart{part.block, part.at, 0, part.way});
    if (operation->bytes > 0) open_.room -= room_for(*operation);
    job.arrays.push_back({static_cast<std::size_t>(operation - open_.operations.data()), operation->bytes});
    operation->bytes += part.bytes;
    open_.room += room_for(*operation);
  }
  open_.jobs.push_back(std::move(job));
}

// Brings what is open, beside the work of the turn before.
void StagedPass::close() {
  Turn& turn = turns_[next_ % turns_.size()];
  settle(turn);
  turn = std::exchange(open_, {});
  bring(turn, staging_.buffer(next_ % turns_.size()));
  carry_out(latest());
  ++next_;
}

void StagedPass::bring(Turn& turn, char* buffer) const {
  std::int64_t taken = 0;
  for (const BlockPart& operation : turn.operations) {
    const std::int64_t begin = next_place(staging_.shape(), taken, operation);
    turn.places.push_back(buffer + begin);
    taken = begin + operation.bytes;
    if (taken > staging_.shape().bytes())
      throw StoreError("parts of " + std::to_string(taken) + " bytes for a buffer of " +
                       std::to_string(staging_.shape().bytes()));
    const View view{turn.places.back(), operation.bytes, Dtype::u8};
    if (operation.way != Access::write) turn.under_way.push_back(operation.block->read(operation.at, view));
  }
}

void StagedPass::carry_out(Turn& turn) {
  if (turn.jobs.empty()) return;
  settle(turn);
  const std::vector<Job> jobs = std::exchange(turn.jobs, {});  // whose work may keep what parts are of
  std::vector<void*> arrays;
  for (const Job& job : jobs) {
    arrays.clear();
    for (const Array& array : job.arrays)
      arrays.push_back(array.operation == kNone ? array.place : turn.places[array.operation] + array.at);
    job.work(arrays);
  }
  for (std::size_t i = 0; i < turn.operations.size(); ++i) {
    const BlockPart& operation = turn.operations[i];
    if (operation.way == Access::read) continue;
    turn.under_way.push_back(operation.block->write(operation.at, {turn.places[i], operation.bytes, Dtype::u8}));
  }
  if (const auto call = std::exchange(turn.then, nullptr)) call();
}

void StagedPass::then(std::function<void()> call) {
  Turn& turn = open_.jobs.empty() ? latest() : open_;
  if (turn.jobs.empty()) return call();
  turn.then = [before = std::move(turn.then), after = std::move(call)] {
    if (before) before();
    after();
  };
}

void StagedPass::finish() {
  if (!open_.jobs.empty()) close();
  carry_out(latest());
  std::ranges::for_each(turns_, &StagedPass::settle);
}

void each_stretch(Staging& staging, std::int64_t count, const PartsOf& parts, const StretchWork& work) {
  StagedPass passage(staging);
  each_stretch(passage, count, parts, work);
  passage.finish();
}

void each_stretch(StagedPass& passage, std::int64_t count, const PartsOf& parts, const StretchWork& work) {
  const Staging& staging = passage.staging();
  const std::vector<BlockPart> all = parts(0, count);
  const auto staged = std::ranges::count_if(all, [&](const BlockPart& part) { return !staging.reachable(part); });
  const std::int64_t most = staged == 0 ? count : staging.shape().elements_of(staged);
  for (std::int64_t first = 0; first < count; first += most) {
    const std::int64_t some = std::min(most, count - first);
    const std::vector<BlockPart> stretch = some == count ? all : parts(first, some);
    passage.pass(stretch, [work, first, some](std::span<void* const> arrays) { work(arrays, first, some); });
  }
}

}  // namespace zero

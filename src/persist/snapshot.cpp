#include "persist/snapshot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "partition/element_order.h"

namespace zero {
namespace {

constexpr std::int64_t kLeastPart = std::int64_t{256} << 10;  // bytes into which a piece is cut
constexpr std::int64_t kAligned = 64;                         // elements, on which it is cut

// The elements [first, last) of a piece that this copy of it writes.
std::pair<std::int64_t, std::int64_t> part_of(const StatePiece& piece, const StateTensor& tensor) {
  const std::int64_t count = piece.count(), copies = piece.copies();
  const auto all_if = [&](bool mine) { return std::pair<std::int64_t, std::int64_t>(0, mine ? count : 0); };
  if (tensor.key.kind == StateKind::buffer) return all_if(piece.copy() == 0);
  if (count * size_of(tensor.dtype) < copies * kLeastPart)
    return all_if((fnv1a(describe(tensor.key)) >> 16) % static_cast<std::uint64_t>(copies) ==
                  static_cast<std::uint64_t>(piece.copy()));
  const auto cut = [&](std::int64_t copy) {
    return copy == copies ? count : count / copies * copy / kAligned * kAligned;
  };
  return {cut(piece.copy()), cut(piece.copy() + 1)};
}

// Calls `take` for what of the elements [first, last) of those told of, one range after the other, is in each range:
// with the range, and where its part begins and ends in it.
class Window {
 public:
  Window(std::int64_t first, std::int64_t last) : first_(first), last_(last) {}
  void pass(std::int64_t begin, std::int64_t end, auto&& take) {
    const std::int64_t from = std::max(first_ - passed_, std::int64_t{0});
    const std::int64_t to = std::min(last_ - passed_, end - begin);
    if (from < to) take(begin + from, begin + to);
    passed_ += end - begin;
  }

 private:
  std::int64_t first_, last_, passed_ = 0;
};

}  // namespace

Snapshot::Snapshot(const EngineState& state, int rank, std::vector<UserTensor> user_tensors)
    : scalars_(state.scalars()),
      tensors_(state.tensors()),
      pieces_(state.pieces()),
      rank_(rank),
      user_tensors_(std::move(user_tensors)) {
  add_pieces();
  for (std::size_t i = 0; i < user_tensors_.size(); ++i)
    slices_.push_back({i, true, 0, size_of(user_tensors_[i].dtype), 0, elements_of(user_tensors_[i].shape), 0, {}});
  std::ranges::stable_sort(slices_, std::greater<>(), &Slice::item);  // so that each is aligned
  for (Slice& slice : slices_) {
    slice.offset = bytes_;
    bytes_ += slice.bytes();
  }
}

void Snapshot::add_pieces() {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const StatePiece& piece = pieces_[i];
    const StateTensor& tensor = tensors_[piece.tensor()];
    const auto [first, last] = part_of(piece, tensor);
    if (first == last) continue;
    Slice slice{i, false, piece.tensor(), size_of(tensor.dtype), first, last, 0, {}};
    Window window(first, last);
    piece.ranges([&](std::int64_t begin, std::int64_t end) {
      window.pass(begin, end, [&](std::int64_t from, std::int64_t to) { append(slice.elements, from, to); });
    });
    slices_.push_back(std::move(slice));
  }
}

void Snapshot::read(const Slice& slice, const UseBytes& use) const {
  if (memory_) return use(memory_ + slice.offset, slice.bytes());
  if (slice.user) return use(user_tensors_[slice.source].values, slice.bytes());
  Window window(slice.first, slice.last);
  pieces_[slice.source].read([&](std::int64_t begin, std::int64_t end, const void* values) {
    window.pass(begin, end, [&](std::int64_t from, std::int64_t to) {
      use(static_cast<const char*>(values) + (from - begin) * slice.item, (to - from) * slice.item);
    });
  });
}

void Snapshot::take(void* memory) {
  for (const Slice& slice : slices_) {
    char* to = static_cast<char*>(memory) + slice.offset;
    read(slice, [&to](const void* bytes, std::int64_t count) {
      if (count > 0) std::memcpy(to, bytes, static_cast<std::size_t>(count));
      to += count;
    });
  }
  memory_ = static_cast<const char*>(memory);
  pieces_.clear();
}

}  // namespace zero

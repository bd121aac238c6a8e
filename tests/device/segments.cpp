#include "device/segments.h"

#include <algorithm>
#include <iterator>

namespace zero::test::accelerator {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kLeast = 512;

std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (std::max<std::size_t>(bytes, 1) + unit - 1) / unit * unit;
}

std::size_t segment_for(std::size_t bytes) {
  if (bytes <= kMiB) return 2 * kMiB;
  return bytes < 10 * kMiB ? 20 * kMiB : rounded(bytes, 2 * kMiB);
}

}  // namespace

// The smallest free piece that is large enough, of the same stream and kind.
Segments::Place Segments::find(std::size_t bytes, std::int64_t stream, bool small) {
  Place best{nullptr, {}};
  for (Segment& segment : segments_) {
    if (segment.stream != stream || segment.small != small) continue;
    for (auto piece = segment.pieces.begin(); piece != segment.pieces.end(); ++piece)
      if (piece->free && piece->bytes >= bytes && (best.segment == nullptr || piece->bytes < best.piece->bytes))
        best = {&segment, piece};
  }
  return best;
}

Segments::Id Segments::take(std::size_t bytes, std::int64_t stream) {
  const std::size_t whole = rounded(bytes, kLeast);
  const bool small = whole <= kMiB;
  Place place = find(whole, stream, small);
  if (place.segment == nullptr) {
    const std::size_t size = segment_for(whole);
    reserved_ += static_cast<std::int64_t>(size);
    Segment& segment = segments_.emplace_back(Segment{stream, small, {{size, true}}});
    place = {&segment, segment.pieces.begin()};
  }
  const std::size_t rest = place.piece->bytes - whole;
  if (small ? rest >= kLeast : rest > kMiB) {
    place.segment->pieces.insert(std::next(place.piece), {rest, true});
    place.piece->bytes = whole;
  }
  place.piece->free = false;
  taken_[next_] = place;
  return next_++;
}

void Segments::give(Id block) {
  const auto [segment, given] = taken_.extract(block).mapped();
  auto piece = given;
  piece->free = true;
  const auto join = [&pieces = segment->pieces](auto left, auto right) {
    left->bytes += right->bytes;
    pieces.erase(right);
    return left;
  };
  if (const auto next = std::next(piece); next != segment->pieces.end() && next->free) piece = join(piece, next);
  if (piece != segment->pieces.begin() && std::prev(piece)->free) join(std::prev(piece), piece);
}

void Segments::empty_cache() {
  segments_.remove_if([this](const Segment& segment) {
    const Piece& first = segment.pieces.front();
    if (segment.pieces.size() > 1 || !first.free) return false;
    reserved_ -= static_cast<std::int64_t>(first.bytes);
    return true;
  });
}

}  // namespace zero::test::accelerator

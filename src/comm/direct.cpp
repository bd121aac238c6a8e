#include "comm/direct.h"

#include <cstring>

#include "comm/tree_sum.h"

namespace zero {
namespace {

constexpr std::int64_t kAlignment = 64;

}  // namespace

template <class Action>
void DirectCommunicator::for_ranks(Action action) const {
  for (int i = 0; i < size(); ++i) action((rank() + i) % size());
}

void DirectCommunicator::fetch(int peer, void* to, const char* from, std::int64_t bytes) {
  copy(to, from, bytes);
  tally_.from(peer, bytes, to == from);
}

// The values that every rank shows at `offset`, to be added up.
std::vector<const void*> DirectCommunicator::to_add(std::int64_t offset, std::int64_t bytes) {
  std::vector<const void*> all;
  for (int r = 0; r < size(); ++r) {
    all.push_back(source(r) + offset);
    tally_.from(r, bytes);
  }
  return all;
}

void DirectCommunicator::stage(ConstView input, int slices, const Piece& piece, char* to) const {
  const std::int64_t element = size_of(input.dtype);
  const std::int64_t length = input.count / slices;
  for (int s = 0; s < slices; ++s)
    copy(to + s * piece.pitch, bytes_of(input.data) + (s * length + piece.begin) * element, piece.count * element);
}

template <class Body>
Pending DirectCommunicator::exchange(Collective operation, ConstView input, ConstView output, int slices,
                                     const Body& body, int root) {
  require_cpu(operation, *this, input, output);
  const std::int64_t element = size_of(input.dtype);
  const std::int64_t length = input.count / slices;
  const Reach reach = enter(Fingerprint::of(next_sequence(), operation, input, output, root), input);
  sources_.resize(static_cast<std::size_t>(size()));
  if (reach != Reach::staged) {
    for_ranks([&](int r) { sources_[static_cast<std::size_t>(r)] = peer(r); });
    body(Piece{0, length, length * element, reach});
    if (reach == Reach::memory) sync();
    return Pending(tally_.take());
  }
  const std::int64_t pitch = kStagingHalf / slices / kAlignment * kAlignment;
  const std::int64_t step = pitch / element;
  for (std::int64_t begin = 0, half = 0; begin < length; begin += step, half ^= 1) {
    const Piece piece{begin, std::min(step, length - begin), pitch, reach};
    for_ranks([&](int r) { sources_[static_cast<std::size_t>(r)] = staging(r, static_cast<int>(half)); });
    if (root < 0 || root == rank()) stage(input, slices, piece, source(rank()));
    sync();
    body(piece);
  }
  return Pending(tally_.take());
}

Pending DirectCommunicator::all_gather(ConstView shard, View whole) {
  const std::int64_t element = size_of(shard.dtype);
  return exchange(Collective::all_gather, shard, whole, 1, [&](const Piece& piece) {
    for_ranks([&](int r) {
      fetch(r, bytes_of(whole.data) + (r * shard.count + piece.begin) * element, source(r), piece.count * element);
    });
  });
}

Pending DirectCommunicator::reduce_scatter(ConstView whole, View shard) {
  return exchange(Collective::reduce_scatter, whole, shard, size(), [&](const Piece& piece) {
    tree_sum(to_add(rank() * piece.pitch, piece.count * size_of(whole.dtype)), whole.dtype,
             bytes_of(shard.data) + piece.begin * size_of(shard.dtype), piece.count);
  });
}

// Each rank sums its part of a piece where its own values were, then fetches the others' parts.
Pending DirectCommunicator::all_reduce(View values) {
  const std::int64_t element = size_of(values.dtype);
  return exchange(Collective::all_reduce, values, values, 1, [&](const Piece& piece) {
    char* const result = bytes_of(values.data) + piece.begin * element;
    if (piece.reach == Reach::copy)
      return tree_sum_rounded(to_add(0, piece.count * element), values.dtype, result, piece.count);
    const Slices parts{piece.count, size()};
    const auto begin = [&](int r) { return parts.begin(r) * element; };
    const auto bytes = [&](int r) { return parts.extent(r) * element; };
    const std::int64_t mine = begin(rank());
    tree_sum_rounded(to_add(mine, bytes(rank())), values.dtype, source(rank()) + mine, parts.extent(rank()));
    sync();
    for_ranks([&](int r) { fetch(r, result + begin(r), source(r) + begin(r), bytes(r)); });
  });
}

Pending DirectCommunicator::all_to_all(ConstView input, View output) {
  const std::int64_t element = size_of(input.dtype);
  const std::int64_t length = input.count / size();
  return exchange(Collective::all_to_all, input, output, size(), [&](const Piece& piece) {
    for_ranks([&](int r) {
      fetch(r, bytes_of(output.data) + (r * length + piece.begin) * element, source(r) + rank() * piece.pitch,
            piece.count * element);
    });
  });
}

Pending DirectCommunicator::broadcast(View values, int root) {
  const std::int64_t element = size_of(values.dtype);
  return exchange(
      Collective::broadcast, values, values, 1,
      [&](const Piece& piece) {
        fetch(root, bytes_of(values.data) + piece.begin * element, source(root), piece.count * element);
        if (root == rank() && size() > 1) tally_.broadcast(piece.count * element);
      },
      root);
}

Pending DirectCommunicator::barrier() {
  return exchange(Collective::barrier, {}, {}, 1, [](const Piece&) {});
}

}  // namespace zero

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

std::vector<const void*> DirectCommunicator::sources(std::int64_t offset) const {
  std::vector<const void*> all;
  for (const char* source : sources_) all.push_back(source + offset);
  return all;
}

void DirectCommunicator::stage(ConstView input, int slices, const Piece& piece, char* to) const {
  const std::int64_t element = size_of(input.dtype);
  const std::int64_t length = input.count / slices;
  for (int s = 0; s < slices; ++s)
    copy(to + s * piece.pitch, bytes_of(input.data) + (s * length + piece.begin) * element, piece.count * element);
}

template <class Body>
void DirectCommunicator::exchange(Collective operation, ConstView input, ConstView output, int slices, const Body& body,
                                  int root) {
  require_cpu(operation, *this, input, output);
  const std::int64_t element = size_of(input.dtype);
  const std::int64_t length = input.count / slices;
  const Reach reach = enter(Fingerprint::of(next_sequence(), operation, input, output, root), input);
  sources_.resize(static_cast<std::size_t>(size()));
  if (reach != Reach::staged) {
    for_ranks([&](int r) { sources_[static_cast<std::size_t>(r)] = peer(r); });
    body(Piece{0, length, length * element, reach});
    if (reach == Reach::memory) sync();
    return;
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
}

Pending DirectCommunicator::all_gather(ConstView shard, View whole) {
  const std::int64_t element = size_of(shard.dtype);
  exchange(Collective::all_gather, shard, whole, 1, [&](const Piece& piece) {
    for_ranks([&](int r) {
      copy(bytes_of(whole.data) + (r * shard.count + piece.begin) * element, source(r), piece.count * element);
    });
  });
  return {};
}

Pending DirectCommunicator::reduce_scatter(ConstView whole, View shard) {
  const std::int64_t element = size_of(shard.dtype);
  exchange(Collective::reduce_scatter, whole, shard, size(), [&](const Piece& piece) {
    tree_sum(sources(rank() * piece.pitch), whole.dtype, bytes_of(shard.data) + piece.begin * element, piece.count);
  });
  return {};
}

// Each rank sums its part of a piece where its own values were, then fetches the others' parts.
Pending DirectCommunicator::all_reduce(View values) {
  const std::int64_t element = size_of(values.dtype);
  exchange(Collective::all_reduce, values, values, 1, [&](const Piece& piece) {
    char* const result = bytes_of(values.data) + piece.begin * element;
    if (piece.reach == Reach::copy) return tree_sum_rounded(sources(0), values.dtype, result, piece.count);
    const Slices parts{piece.count, size()};
    const std::int64_t mine = parts.begin(rank()) * element;
    tree_sum_rounded(sources(mine), values.dtype, source(rank()) + mine, parts.extent(rank()));
    sync();
    for_ranks([&](int r) {
      copy(result + parts.begin(r) * element, source(r) + parts.begin(r) * element, parts.extent(r) * element);
    });
  });
  return {};
}

Pending DirectCommunicator::all_to_all(ConstView input, View output) {
  const std::int64_t element = size_of(input.dtype);
  const std::int64_t length = input.count / size();
  exchange(Collective::all_to_all, input, output, size(), [&](const Piece& piece) {
    for_ranks([&](int r) {
      copy(bytes_of(output.data) + (r * length + piece.begin) * element, source(r) + rank() * piece.pitch,
           piece.count * element);
    });
  });
  return {};
}

Pending DirectCommunicator::broadcast(View values, int root) {
  const std::int64_t element = size_of(values.dtype);
  exchange(
      Collective::broadcast, values, values, 1,
      [&](const Piece& piece) {
        copy(bytes_of(values.data) + piece.begin * element, source(root), piece.count * element);
      },
      root);
  return {};
}

Pending DirectCommunicator::barrier() {
  exchange(Collective::barrier, {}, {}, 1, [](const Piece&) {});
  return {};
}

}  // namespace zero

#include "comm/direct.h"

#include <cstring>

#include "base/collective_rules.h"
#include "base/sum_tree.h"
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

void DirectCommunicator::stage(ConstView input, const Cuts& slices, const Piece& piece, char* to) const {
  const std::int64_t element = size_of(input.dtype);
  const std::int64_t length = input.count / slices.all;
  for (int s = 0; s < slices.filled; ++s)
    copy(to + s * piece.pitch, bytes_of(input.data) + (s * length + piece.begin) * element, piece.count * element);
}

// Piece by piece where what the ranks published cannot be seen.
Pending DirectCommunicator::run(const CollectiveCall& call) {
  require_cpu(call, *this);
  const int slices = slices_of_input(call, size());
  const bool reduces = call.collective == Collective::reduce_scatter;
  const std::optional<SumParts> sum = reduces ? std::optional(SumParts(GroupSum(call.leaves, size()))) : std::nullopt;
  const std::int64_t element = size_of(call.in.dtype);
  const std::int64_t length = call.in.count / slices;
  const Reach reach = enter(Fingerprint::of(next_sequence(), call), call.in);
  sources_.resize(static_cast<std::size_t>(size()));
  if (reach != Reach::staged) {
    for_ranks([&](int r) { sources_[static_cast<std::size_t>(r)] = peer(r); });
    carry_out(call, {0, length, length * element, reach}, sum);
    if (reach == Reach::memory) sync();
    return Pending(tally_.take());
  }
  const std::int64_t room = kStagingHalf / slices, pitch = room - room % (room < kAlignment ? element : kAlignment);
  const std::int64_t step = pitch / element;
  const int filled = reduces ? size() * GroupSum(call.leaves, size()).brought(rank()) : slices;
  for (std::int64_t begin = 0, half = 0; begin < length; begin += step, half ^= 1) {
    const Piece piece{begin, std::min(step, length - begin), pitch, reach};
    for_ranks([&](int r) { sources_[static_cast<std::size_t>(r)] = staging(r, static_cast<int>(half)); });
    if (call.root < 0 || call.root == rank()) stage(call.in, {slices, filled}, piece, source(rank()));
    sync();
    carry_out(call, piece, sum);
  }
  return Pending(tally_.take());
}

void DirectCommunicator::carry_out(const CollectiveCall& call, const Piece& piece,
                                   const std::optional<SumParts>& parts) {
  if (!rule_of(call.collective).sums) return move(call, piece);
  parts ? reduce(call, piece, *parts) : sum(call.out, piece);
}

void DirectCommunicator::move(const CollectiveCall& call, const Piece& piece) {
  const std::int64_t element = size_of(call.in.dtype), bytes = piece.count * element;
  const std::int64_t length = call.in.count / slices_of_input(call, size());
  const CollectiveRule& rule = rule_of(call.collective);
  for_ranks([&](int r) {
    if (const Take take = rule.take(rank(), r, call.root))
      fetch(r, bytes_of(call.out.data) + (take.place * length + piece.begin) * element,
            source(r) + take.slice * piece.pitch, bytes);
  });
  if (call.root == rank() && size() > 1) tally_.broadcast(bytes);
}

void DirectCommunicator::reduce(const CollectiveCall& call, const Piece& piece, const SumParts& sum) {
  std::vector<const void*> values;
  for (const SumParts::Part& part : sum.parts) {
    values.push_back(source(part.rank) + (part.number * size() + rank()) * piece.pitch);
    tally_.from(part.rank, piece.count * size_of(call.in.dtype));
  }
  char* const to = bytes_of(call.out.data) + piece.begin * size_of(call.out.dtype);
  group_sum(sum, values, call.in.dtype, to, call.out.count / std::ssize(sum.sums), piece.count);
}

// Each rank sums its part of a piece where its own values were, then fetches the others' parts.
void DirectCommunicator::sum(View values, const Piece& piece) {
  const std::int64_t element = size_of(values.dtype);
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
}

}  // namespace zero

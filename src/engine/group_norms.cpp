// Norms of the gradient, by group of parameters.
#include <cmath>
#include <span>

#include "device/square_sums.h"
#include "engine/impl.h"

namespace zero {
namespace {

// Of each group's sum its limbs, one sum after the other, with what was there.
void add_limbs(std::vector<ExactSum> sums, std::vector<std::int64_t>& words) {
  for (std::size_t group = 0; group < sums.size(); ++group) {
    const auto limbs = sums[group].limbs();
    for (std::size_t i = 0; i < limbs.size(); ++i) words[group * ExactSum::kLimbs + i] += limbs[i];
  }
}

}  // namespace

// This rank's part of each group's sum of squares, as limbs.
std::vector<std::int64_t> Engine::Impl::squares_of_groups() {
  const std::size_t groups = options_.groups.size() + 1;
  SquareSums here(accounts_.device(), groups), of_host(accounts_.computing(Tier::host), groups);
  for (const auto& unit : units_) {
    const HeldGradient* const held = gradients_->held(unit->index());
    if (held == nullptr) continue;
    SquareSums& sums = &held->device() == &accounts_.device() ? here : of_host;
    for (const Piece& piece : unit->layout().pieces(unit->rank())) {
      const Slot& slot = unit->layout().slots()[static_cast<std::size_t>(piece.slot)];
      const int taken = group_of(infos_[static_cast<std::size_t>(slot.index)]);
      const std::size_t group = taken < 0 ? groups - 1 : static_cast<std::size_t>(taken);
      gradients_->read(
          unit->index(), {piece.begin, piece.end - piece.begin},
          [&](const void* values, std::int64_t, std::int64_t count) { sums.add(group, values, held->dtype(), count); });
    }
  }
  std::vector<std::int64_t> words(groups * ExactSum::kLimbs);
  add_limbs(here.read(), words);
  add_limbs(of_host.read(), words);
  return words;
}

// Of a gradient that is finite; nothing where they were not asked for. Collective.
std::vector<double> Engine::Impl::group_norms() {
  if (!options_.group_norms) return {};
  const std::vector<std::int64_t> mine = squares_of_groups();
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(exchange_.size()));
  exchange_.run({.kind = Exchange::Kind::vote,
                 .count = static_cast<std::int64_t>(mine.size()),
                 .run =
                     [&](const Groups& groups) {
                       groups.gather({mine.data(), static_cast<std::int64_t>(mine.size()), Dtype::i64},
                                     {all.data(), static_cast<std::int64_t>(all.size()), Dtype::i64}, Axis::data);
                     },
                 .lane = Exchange::Lane::control});
  std::vector<double> norms;
  for (std::size_t first = 0; first < mine.size(); first += ExactSum::kLimbs) {
    ExactSum squares;
    for (std::size_t at = first; at < all.size(); at += mine.size())
      squares.add(std::span<const std::int64_t>(all).subspan(at, ExactSum::kLimbs));
    norms.push_back(std::sqrt(squares.value()) / held_times());
  }
  return norms;
}

}  // namespace zero

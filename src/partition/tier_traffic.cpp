#include "partition/tier_traffic.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "partition/fold.h"
#include "partition/full_tensors.h"
#include "partition/moments.h"
#include "partition/per_rank.h"
#include "partition/transitions.h"

namespace zero {
namespace {

class Moves {
 public:
  Moves(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules, const Repeats& repeats)
      : plan_(plan),
        layout_(layout),
        rules_(rules),
        repeats_(repeats),
        movement_(movement(plan)),
        kept_(layout.ranks()),
        gradients_(layout.ranks()) {}

  TierMoves run() && {
    for (std::size_t i = 0; i < repeats_.size(); ++i) {
      const UnitLayout& unit = layout_.units()[i];
      if (!unit.trainable() || unit.length() == 0) continue;
      hold(unit, repeats_[i]);
      update(unit, repeats_[i]);
    }
    const std::int64_t kept = std::move(kept_).most();
    add(moves_.update, State::optimizer, {.read = kept, .written = kept});
    add(moves_.update, State::gradient, {.read = std::move(gradients_).most()});
    return moves_;
  }

 private:
  void add(TierTraffic& to, State state, const TierTraffic::Entry& moved) const {
    if (plan_[state].tier != Tier::device) to.on(plan_[state].tier, state) += moved;
  }

  // The gradient, from its first micro-batch to the vote, which reads the slice.
  void hold(const UnitLayout& unit, std::int64_t times) {
    const std::int64_t slice = unit.shard_length(), added = movement_.reduces_each ? slice : unit.numel();
    TierTraffic::Entry elements;
    for (int micro = 0; micro < plan_.accumulate(); ++micro) {
      const Fold fold = fold_of(plan_.reproducible(), accumulation_levels(plan_), micro, plan_.accumulate());
      elements += {.read = added * static_cast<std::int64_t>(fold.sources.size()), .written = added};
    }
    if (!movement_.reduces_each && layout_.ranks() > 1) elements += {.read = unit.length(), .written = slice};
    const std::int64_t size = times * size_of(plan_.gradient_dtype(unit.dtype()));
    add(moves_.backward, State::gradient, {.read = size * elements.read, .written = size * elements.written});
    add(moves_.vote, State::gradient, {.read = size * slice});
  }

  // Of the parameters, not of what lies between them.
  void update(const UnitLayout& unit, std::int64_t times) {
    const std::int64_t length = held_at_rest(plan_, State::optimizer, unit, 0).count;
    const int alike = static_cast<int>(layout_.ranks() * length / unit.length());  // ranks that update the same
    const std::int64_t gradient = size_of(plan_.gradient_dtype(unit.dtype()));
    alike_slices(unit, length, [&](int first, int last) {
      std::int64_t kept = 0, gradients = 0;
      for (const Piece& piece : unit.pieces_between(first * length, (first + 1) * length)) {
        const Optimizer& optimizer = rule(unit.slots()[static_cast<std::size_t>(piece.slot)]);
        const std::int64_t elements = piece.end - piece.begin;
        kept += passes(optimizer) * kept_bytes(unit, piece, optimizer);
        gradients += passes(optimizer) * elements * gradient;
      }
      kept_.add(alike * first, alike * last, times * kept);
      gradients_.add(alike * first, alike * last, times * gradients);
    });
  }

  // Of what the optimizer keeps element by element.
  std::int64_t kept_bytes(const UnitLayout& unit, const Piece& piece, const Optimizer& optimizer) const {
    const std::int64_t each =
        plan_.remainder_bytes(unit.dtype()) + moments(optimizer) * size_of(moment_dtype(optimizer, unit.dtype()));
    return each * (piece.end - piece.begin) + scale_bytes(piece, optimizer, unit.dtype());
  }

  const Optimizer& rule(const Slot& slot) const { return rules_[static_cast<std::size_t>(slot.index)].optimizer; }

  const Plan& plan_;
  const Layout& layout_;
  const std::vector<ParameterRule>& rules_;
  const Repeats& repeats_;
  Movement movement_;
  PerRank kept_, gradients_;  // by rank: of an update
  TierMoves moves_;
};

}  // namespace

TierMoves moved_between_tiers(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                              const Repeats& repeats) {
  const bool any = std::ranges::any_of(std::array{State::parameter, State::gradient, State::optimizer},
                                       [&](State state) { return plan[state].tier != Tier::device; });
  return any ? Moves(plan, layout, rules, repeats).run() : TierMoves{};
}

}  // namespace zero

#include "partition/tier_traffic.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "partition/accumulation_order.h"
#include "partition/full_tensor_owners.h"
#include "partition/moments.h"
#include "partition/per_rank.h"
#include "partition/routes.h"
#include "partition/staying.h"

namespace zero {
namespace {

// Of an update, a sum for each rank.
class Passed {
 public:
  explicit Passed(int ranks) : read_(ranks), written_(ranks) {}

  void add(int begin, int end, const TierTraffic::Entry& moved) {
    read_.add(begin, end, moved.read);
    written_.add(begin, end, moved.written);
  }
  TierTraffic::Entry most() && { return {std::move(read_).most(), std::move(written_).most()}; }

 private:
  PerRank read_, written_;
};

class Moves {
 public:
  Moves(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules, const Repeats& repeats,
        bool on_device)
      : plan_(plan),
        layout_(layout),
        rules_(rules),
        repeats_(repeats),
        on_device_(on_device),
        stay_(staying(plan, layout, rules, repeats)),
        routes_(plan),
        sums_(sums_of_step(plan, layout.ranks())),
        kept_(layout.ranks()),
        kept_here_(layout.ranks()),
        gradients_here_(layout.ranks()),
        gradients_(layout.ranks()),
        parameters_(layout.ranks()) {}

  TierMoves run() && {
    for (std::size_t i = 0; i < repeats_.size(); ++i) {
      const UnitLayout& unit = layout_.units()[i];
      if (!unit.trainable() || unit.length() == 0) continue;
      hold(unit, repeats_[i] - stay_[i]);
      update(unit, repeats_[i], stay_[i]);
    }
    add(moves_.update, State::optimizer, std::move(kept_).most());
    add(moves_.update, State::gradient, std::move(gradients_).most());
    add(moves_.update, State::parameter, std::move(parameters_).most());
    across(moves_.update, State::optimizer, std::move(kept_here_).most());
    across(moves_.update, State::gradient, std::move(gradients_here_).most());
    return moves_;
  }

 private:
  // Of what is held where `state` is, by what the host computes.
  void add(TierTraffic& to, State state, const TierTraffic::Entry& moved) const {
    if (plan_[state].tier == Tier::disk) to.on(Tier::disk, state) += moved;
    if (plan_[state].tier == Tier::device && on_device_) across(to, state, moved);
  }

  // Of what the host computes of a state that is on the device.
  static void across(TierTraffic& to, State state, const TierTraffic::Entry& moved) {
    to.on(Tier::host, state) += {.read = moved.written, .written = moved.read};
  }

  // The gradient on its way between the device, where it is computed and reduced, and where it is held.
  void cross(const UnitLayout& unit, std::int64_t times) {
    const std::int64_t added = times * sums_.added;
    const std::int64_t sum = unit.shard_length() * size_of(accumulation(unit.dtype()));
    TierTraffic::Entry& link = moves_.backward.on(Tier::host, State::gradient);
    if (routes_.reduces_each()) {
      link.written += added * sum;
      return;
    }
    link.written += added * unit.numel() * size_of(unit.dtype());
    if (layout_.ranks() == 1) return;
    link.read += times * sums_.left * unit.length() * size_of(routes_.sent(unit, plan_.gradient_dtype(unit.dtype())));
    link.written += times * sum;
  }

  // The gradient, from its first micro-batch to the vote, which reads the slice.
  void hold(const UnitLayout& unit, std::int64_t times) {
    if (plan_[State::gradient].tier == Tier::device) return;
    if (on_device_) cross(unit, times);
    const std::int64_t slice = unit.shard_length(), added = routes_.reduces_each() ? slice : unit.numel();
    TierTraffic::Entry elements{.read = added * sums_.joined, .written = added * sums_.added};
    if (!routes_.reduces_each() && layout_.ranks() > 1)
      elements += {.read = sums_.left * unit.length(), .written = slice};
    const std::int64_t size = times * size_of(plan_.gradient_dtype(unit.dtype()));
    add(moves_.backward, State::gradient, {.read = size * elements.read, .written = size * elements.written});
    add(moves_.vote, State::gradient, {.read = size * slice});
  }

  // Of the parameters, not of what lies between them; of `times` units, of which `stay` have all else on the device.
  // These are updated there, unless their parameters are elsewhere.
  void update(const UnitLayout& unit, std::int64_t times, std::int64_t stay) {
    const bool together = plan_[State::parameter].tier == Tier::device,
               gradients_here = plan_[State::gradient].tier == Tier::device;
    const std::int64_t below = times - stay, crossing = on_device_ && !together ? stay : 0;
    const std::int64_t length = routes_.rest(State::optimizer, unit).count;
    const int alike = static_cast<int>(layout_.ranks() * length / unit.length());  // ranks that update the same
    alike_slices(unit, length, [&](int first, int last) {
      TierTraffic::Entry kept, kept_here, gradients, gradients_here_too, parameters;
      for (const Piece& piece : unit.pieces_between(first * length, (first + 1) * length)) {
        kept += times_of(below, kept_of(unit, piece));
        kept_here += times_of(crossing, kept_of(unit, piece));
        gradients += times_of(below + (gradients_here ? crossing : 0), gradient_of(unit, piece));
        gradients_here_too += times_of(gradients_here ? 0 : crossing, gradient_of(unit, piece));
        parameters += times_of(together ? below : times, parameter_of(unit, piece));
      }
      kept_here_.add(alike * first, alike * last, kept_here);
      gradients_here_.add(alike * first, alike * last, gradients_here_too);
      kept_.add(alike * first, alike * last, kept);
      gradients_.add(alike * first, alike * last, gradients);
      parameters_.add(alike * first, alike * last, parameters);
    });
  }

  static TierTraffic::Entry times_of(std::int64_t times, const TierTraffic::Entry& moved) {
    return {times * moved.read, times * moved.written};
  }

  static std::int64_t elements(const Piece& piece) { return piece.end - piece.begin; }

  // Of what the optimizer keeps element by element: main weights or their remainders, which the last pass writes, and
  // moments, which each does.
  TierTraffic::Entry kept_of(const UnitLayout& unit, const Piece& piece) const {
    const Optimizer& optimizer = rule(unit, piece);
    const std::int64_t weights = elements(piece) * plan_.remainder_bytes(unit.dtype());
    const std::int64_t moved = elements(piece) * moments(optimizer) * size_of(moment_dtype(optimizer, unit.dtype())) +
                               scale_bytes(piece, optimizer, unit.dtype());
    return {passes(optimizer) * (weights + moved), weights + passes(optimizer) * moved};
  }

  TierTraffic::Entry gradient_of(const UnitLayout& unit, const Piece& piece) const {
    return {passes(rule(unit, piece)) * elements(piece) * size_of(plan_.gradient_dtype(unit.dtype())), 0};
  }

  // Parameters that follow from main weights are written only, and those of which a delayed update keeps a copy.
  TierTraffic::Entry parameter_of(const UnitLayout& unit, const Piece& piece) const {
    const Dtype stored = unit.dtype();
    const bool follow =
        plan_.delays_update() || (accumulation(stored) != stored && plan_.remainder(stored) == Remainder::main_weights);
    const std::int64_t bytes = elements(piece) * size_of(stored);
    return {follow ? 0 : passes(rule(unit, piece)) * bytes, bytes};
  }

  const Optimizer& rule(const UnitLayout& unit, const Piece& piece) const {
    const Slot& slot = unit.slot(piece.slot);
    return rules_[static_cast<std::size_t>(slot.index)].optimizer;
  }

  const Plan& plan_;
  const Layout& layout_;
  const std::vector<ParameterRule>& rules_;
  const Repeats& repeats_;
  bool on_device_;
  std::vector<std::int64_t> stay_;
  Routes routes_;
  SumsOfStep sums_;  // a rank with most left moves most
  Passed kept_, kept_here_, gradients_here_, gradients_, parameters_;
  TierMoves moves_;
};

}  // namespace

TierMoves moved_between_tiers(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                              const Repeats& repeats, bool on_device) {
  const bool any = std::ranges::any_of(std::array{State::parameter, State::gradient, State::optimizer},
                                       [&](State state) { return plan[state].tier != Tier::device; });
  return any ? Moves(plan, layout, rules, repeats, on_device).run() : TierMoves{};
}

TierTraffic moved_for_use(const Plan& plan, std::int64_t bytes, bool on_device) {
  TierTraffic moved;
  const Tier tier = plan[State::parameter].tier;
  if (tier == Tier::disk) moved.on(Tier::disk, State::parameter).read = bytes;
  if (on_device) moved.on(Tier::host, State::parameter).read = bytes;
  return moved;
}

}  // namespace zero

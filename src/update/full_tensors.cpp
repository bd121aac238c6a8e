#include "update/full_tensors.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "base/elements.h"
#include "base/exact_sum.h"
#include "update/owned_steps.h"

namespace zero {
namespace {

// Elements that the host's cache keeps between one kernel and the next; a multiple of kSquareBlock.
constexpr std::int64_t kChunk = 8192;

// Calls use(part, begin) with parts of the range.
template <class Use>
void in_parts(const Device& device, const UpdateRange& range, const Use& use) {
  const std::int64_t most = device.is_host() ? kChunk : std::max<std::int64_t>(range.count, 1);
  for (std::int64_t begin = 0; begin < range.count; begin += most)
    use(part_of(range, begin, std::min(most, range.count - begin)), begin);
}

char* element(const Buffer& buffer, std::int64_t index, Dtype dtype) {
  return at_element(buffer.data(), index, dtype);
}

// What remains of a weight, and the factor on its step.
struct Size {
  double kept = 1;
  double size = 0;
};

struct Facts {
  const ParameterRule& rule;
  const UpdateFactors& factors;
  double numel;
  double weights, step;  // norms
};

Size size_of_step(const Muon& o, const Facts& facts) {
  const Matrix m = hidden_shape(facts.rule.shape);
  const auto rows = static_cast<double>(m.rows), columns = static_cast<double>(m.columns);
  const double scale =
      o.as_large_as_adamw ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
  return {1 - facts.factors.lr * o.weight_decay, facts.factors.lr * scale};
}

Size size_of_step(const Lamb&, const Facts& facts) {
  const bool both = facts.weights > 0 && facts.step > 0;
  return {1, facts.factors.lr * (both ? facts.weights / facts.step : 1)};
}

Size size_of_step(const Adafactor& o, const Facts& facts) {
  const double root = std::sqrt(facts.numel);
  const double lr = std::min(facts.factors.lr, 1 / std::sqrt(static_cast<double>(facts.factors.step)));
  const double clipped = o.factored ? 1 : std::max(1.0, facts.step / (root * o.clip));  // else its owner has
  return {1 - facts.factors.lr * o.weight_decay, lr * std::max(o.eps_step, facts.weights / root) / clipped};
}

Size size_of_step(const Facts& facts) {
  return std::visit(
      [&](const auto& optimizer) {
        if constexpr (requires { size_of_step(optimizer, facts); }) return size_of_step(optimizer, facts);
        return Size{};
      },
      facts.rule.optimizer);
}

}  // namespace

FullTensors::FullTensors(const Layout& layout, const Routes& routes, const std::vector<ParameterRule>& rules,
                         Exchange& exchange, Accounts& accounts)
    : rules_(rules),
      exchange_(exchange),
      accounts_(accounts),
      routes_(routes),
      owners_(owners(layout, rules)),
      factored_(rules.size()) {
  for (const UnitLayout& unit : layout.units()) {
    units_.push_back(full_tensor_unit(unit, rules));
    if (unit.trainable()) make_room(unit, units_.back());
  }
}

// For the unit beside those before it; one that is frozen at first gets it when it is first trained.
void FullTensors::make_room(const UnitLayout& unit, const FullTensorUnit& work) {
  const std::int64_t inputs = input_bytes(unit, work);
  const std::int64_t steps = step_bytes(unit, work, stepped(unit).count);
  if (inputs > (inputs_ ? inputs_.count() : 0)) inputs_ = accounts_.visible_buffer(Owner::update, inputs, at::kByte);
  if (steps > (steps_ ? steps_.count() : 0)) steps_ = accounts_.buffer(Owner::update, steps, at::kByte);
  for (const Slot& slot : unit.slots()) make_factors(slot, accumulation(unit.dtype()));
}

// Zero at first; only on the owner.
void FullTensors::make_factors(const Slot& slot, Dtype dtype) {
  Factored& factored = factored_[static_cast<std::size_t>(slot.index)];
  if (!owns(slot) || owned_values(rule(slot)) == 0 || factored.rows) return;
  const auto [rows, columns] = factor_shapes(rule(slot).shape);
  const auto zeros = [&](const std::vector<std::int64_t>& shape) {
    Buffer buffer = accounts_.buffer(Owner::optimizer, c10::multiply_integers(shape), scalar_type(dtype));
    buffer.tensor().zero_();
    return buffer;
  };
  factored = {zeros(rows), zeros(columns), rows, columns};
}

void FullTensors::forget(const Unit& unit) {
  for (const Slot& slot : unit.layout().slots()) factored_[static_cast<std::size_t>(slot.index)] = {};
}

void FullTensors::each_state(const Unit& unit, const VisitState& tell) const {
  for (const Slot& slot : unit.layout().slots()) {
    const auto& [rows, columns, row_shape, column_shape] = factored_[static_cast<std::size_t>(slot.index)];
    if (!rows || slot.numel == 0) continue;
    const auto offer = [&](StateKind kind, const Buffer& values) {
      tell({.slot = &slot, .kind = kind, .end = values.count(), .memory = values.data(), .over = Axis::data});
    };
    offer(StateKind::row, rows);
    offer(StateKind::column, columns);
  }
}

bool FullTensors::owns(const Slot& slot) const {
  return owners_[static_cast<std::size_t>(slot.index)] == exchange_.rank();
}

void FullTensors::step(const Unit& unit, const Factors& factors, const std::vector<Stretch>& stretches) {
  const FullTensorUnit& work = units_[static_cast<std::size_t>(unit.index())];
  if (!work.any) return;
  prepare(unit);
  Device& device = accounts_.device();
  SquareSums sums(device, work.normed.empty() ? 0 : 2 * unit.layout().slots().size());
  if (work.owned) {
    add_norms(unit, factors, stretches, /*owned=*/true, sums);
    update_owned_moments(unit, factors, stretches);
    compute_owned(unit, factors);
    distribute(unit);
  }
  add_norms(unit, factors, stretches, /*owned=*/false, sums);
  const std::vector<Norms> norms = take_norms(unit, sums);
  for (const Stretch& stretch : stretches) {
    const Slot& slot = unit.layout().slot(stretch.slot);
    const UpdateFactors& f = *factors[static_cast<std::size_t>(stretch.slot)];
    const Norms& norm = norms[static_cast<std::size_t>(stretch.slot)];
    const auto [kept, size] = size_of_step({rule(slot), f, static_cast<double>(slot.numel), norm.weights, norm.step});
    stretch.each(Weights::moved, [&, kept = kept, size = size](const UpdateRange& range) {
      device.run(ApplyStep{kept, size, step_at(unit, slot.begin + range.first), f, range});
    });
  }
}

Slice FullTensors::stepped(const UnitLayout& unit) const {
  const Slice room = routes_.steps(unit, accumulation(unit.dtype())).room(), updated = held(unit);
  return room.count > updated.count ? room : updated;
}

char* FullTensors::step_at(const Unit& unit, std::int64_t index) const {
  return element(steps_, index - stepped(unit.layout()).begin, accumulation(unit.layout().dtype()));
}

void FullTensors::update_owned_moments(const Unit& unit, const Factors& factors,
                                       const std::vector<Stretch>& stretches) {
  const Dtype wire = units_[static_cast<std::size_t>(unit.index())].wire;
  for (const Stretch& stretch : stretches) {
    const Slot& slot = unit.layout().slot(stretch.slot);
    const Optimizer& optimizer = rule(slot).optimizer;
    if (!full_tensor_work(optimizer)->owner) continue;
    stretch.each(Weights::kept, [&](const UpdateRange& range) {
      accounts_.device().run(UpdateMoments{optimizer, *factors[static_cast<std::size_t>(stretch.slot)], range, nullptr,
                                           element(inputs_, slot.begin + range.first, wire), wire});
    });
  }
  const Route route = routes_.updated(unit.layout(), wire);
  if (route.hops.empty()) return;
  const View whole = view_of(inputs_.data(), wire, 0, unit.layout().length(), unit.device());
  const View mine = view_of(inputs_.data(), wire, route.from.begin, route.from.count, unit.device());
  exchange_.run({Exchange::Kind::whole_tensor, unit.index(), whole.count,
                 [mine, whole, route](const MeshGroups& groups) { groups.carry_out(route, mine, whole); }});
}

// Leaves the steps of this rank's tensors where their inputs were, and zeros elsewhere.
void FullTensors::compute_owned(const Unit& unit, const Factors& factors) {
  const at::NoGradGuard no_grad;
  const UnitLayout& layout = unit.layout();
  const FullTensorUnit& work = units_[static_cast<std::size_t>(unit.index())];
  std::vector<std::pair<at::Tensor, at::Tensor>> steps;
  for (std::size_t i = 0; i < layout.slots().size(); ++i) {
    const Slot& slot = layout.slots()[i];
    if (!owns(slot) || !factors[i]) continue;
    const at::Tensor& parameter = unit.parameters()[i];
    const at::Tensor all = inputs_.tensor().narrow(0, 0, input_bytes(layout, work)).view(scalar_type(work.wire));
    const at::Tensor input = all.as_strided(parameter.sizes(), parameter.strides(), slot.begin);
    steps.emplace_back(input, step_of(slot, input, *factors[i]));
  }
  accounts_.device().zero(inputs_.data(), input_bytes(layout, work));
  // Minus zero becomes plus zero, as it would in a sum with the others' zeros.
  for (const auto& [place, step] : steps) place.copy_(step.add(0));
}

at::Tensor FullTensors::step_of(const Slot& slot, const at::Tensor& input, const UpdateFactors& factors) {
  const Optimizer& optimizer = rule(slot).optimizer;
  if (const auto* muon = std::get_if<Muon>(&optimizer)) return orthogonalised(input, muon->iterations);
  const Factored& means = factored_[static_cast<std::size_t>(slot.index)];
  return factored_step(std::get<Adafactor>(optimizer), input, means.rows.tensor().view(means.row_shape),
                       means.columns.tensor().view(means.column_shape), factors.step);
}

void FullTensors::distribute(const Unit& unit) {
  const UnitLayout& layout = unit.layout();
  const Dtype wide = accumulation(layout.dtype()), wire = units_[static_cast<std::size_t>(unit.index())].wire;
  const View sent = view_of(inputs_.data(), wire, 0, layout.length(), unit.device());
  const Route sum = routes_.steps(layout, wire), back = routes_.brought_steps(layout);
  const auto steps = [&](const Slice& slice) {
    return view_of(step_at(unit, slice.begin), wide, 0, slice.count, unit.device());
  };
  const View room = steps(sum.room()), all = steps(back.to);
  if (exchange_.size() == 1) {
    accounts_.device().run(Convert{sent.data, sent.dtype, all.data, all.dtype, all.count});
    return;
  }
  exchange_.run(
      {Exchange::Kind::whole_tensor, unit.index(), sent.count, [sent, room, all, sum, back](const MeshGroups& groups) {
         groups.carry_out(back, groups.carry_out(sum, sent, room), all);
       }});
}

// Adds the squares of weights and of steps to `sums`: of those whose step has an owner, before it is brought, or of
// the others, whose step this computes. The weights are read to where the step will be.
void FullTensors::add_norms(const Unit& unit, const Factors& factors, const std::vector<Stretch>& stretches, bool owned,
                            SquareSums& sums) const {
  const UnitLayout& layout = unit.layout();
  const Dtype wide = accumulation(layout.dtype());
  Device& device = accounts_.device();
  for (const Stretch& stretch : stretches) {
    const auto slot = static_cast<std::size_t>(stretch.slot);
    const Optimizer& optimizer = rule(layout.slots()[slot]).optimizer;
    const FullTensorWork work = *full_tensor_work(optimizer);
    if (!work.norms || work.owner != owned) continue;
    stretch.each(Weights::kept, [&](const UpdateRange& range) {
      in_parts(device, range, [&](const UpdateRange& part, std::int64_t begin) {
        void* const place = step_at(unit, layout.slots()[slot].begin + range.first + begin);
        device.run(ReadWeights{part, place});
        sums.add(2 * slot, place, wide, part.count);
        if (owned) return;
        device.run(UpdateMoments{optimizer, *factors[slot], part, place, place, wide});
        sums.add(2 * slot + 1, place, wide, part.count);
      });
    });
  }
}

// By slot.
std::vector<FullTensors::Norms> FullTensors::take_norms(const Unit& unit, const SquareSums& squares) const {
  const UnitLayout& layout = unit.layout();
  const FullTensorUnit& work = units_[static_cast<std::size_t>(unit.index())];
  std::vector<Norms> result(layout.slots().size());
  if (work.normed.empty()) return result;
  std::vector<ExactSum> sums = squares.read();
  if (const Shard updated = held(layout); updated.over) exchange_sums(unit, work, *updated.over, sums);
  for (const int slot : work.normed) {
    const auto i = static_cast<std::size_t>(slot);
    result[i] = {std::sqrt(sums[2 * i].value()), std::sqrt(sums[2 * i + 1].value())};
  }
  return result;
}

// Sums of the normed slots, added over the ranks that update something else than each other.
void FullTensors::exchange_sums(const Unit& unit, const FullTensorUnit& work, Axis over,
                                std::vector<ExactSum>& sums) const {
  std::vector<std::int64_t> mine;
  for (const int slot : work.normed)
    for (const int which : {0, 1}) {
      const auto limbs = sums[static_cast<std::size_t>(2 * slot + which)].limbs();
      mine.insert(mine.end(), limbs.begin(), limbs.end());
    }
  const std::vector<std::int64_t> all = exchange_.table(Exchange::Kind::whole_tensor, mine, over, unit.index());
  std::fill(sums.begin(), sums.end(), ExactSum{});
  for (auto limbs = all.begin(); limbs != all.end();)
    for (const int slot : work.normed)
      for (const int which : {0, 1}) {
        sums[static_cast<std::size_t>(2 * slot + which)].add(std::span<const std::int64_t>(limbs, ExactSum::kLimbs));
        limbs += ExactSum::kLimbs;
      }
}

}  // namespace zero

#include "engine/updater.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "base/half.h"
#include "base/random.h"
#include "zero/error.h"

namespace zero {
namespace {

char* element(void* data, std::int64_t index, Dtype dtype) {
  return static_cast<char*>(data) + index * size_of(dtype);
}

template <class Narrow>
void adopt_changed(const Narrow* written, float* main, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Narrow rounded;
    narrow(main[i], rounded);
    if (widen(rounded) != widen(written[i])) main[i] = widen(written[i]);
  }
}

void keep_rest(const float* values, Bf16* rest, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Bf16 rounded;
    narrow(values[i], rounded);
    cut(values[i] - widen(rounded), rest[i]);
  }
}

void drop_misfits(const Bf16* written, Bf16* rest, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Bf16 rounded;
    narrow(widen(written[i]) + widen(rest[i]), rounded);
    if (rounded.bits != written[i].bits) rest[i] = {};
  }
}

}  // namespace

Updater::Updater(const Layout& layout, const Plan& plan, std::vector<ParameterRule> rules, std::uint64_t seed,
                 Exchange& exchange, Accounts& accounts)
    : plan_(plan),
      seed_(seed),
      rules_(std::move(rules)),
      steps_(rules_.size()),
      states_(layout.units().size()),
      accounts_(accounts),
      whole_(layout, plan, rules_, exchange, accounts) {
  for (const UnitLayout& unit : layout.units())
    for (const Slot& slot : unit.slots()) check_torch(slot, unit.dtype());
}

void Updater::check_torch(const Slot& slot, Dtype stored) const {
  const auto* const torch = std::get_if<TorchOptimizer>(&rule(slot).optimizer);
  if (torch == nullptr) return;
  if (accumulation(stored) != stored && plan_.remainder(stored) != Remainder::main_weights)
    throw ConfigError("optimizer " + torch->label + " needs main weights, which " +
                      std::string(name(plan_.precision())) + " does not keep");
  require_elementwise(*torch);
}

void Updater::prepare(Unit& unit, const at::Tensor& values) {
  at::NoGradGuard no_grad;
  const Dtype stored = unit.layout().dtype(), wide = accumulation(stored);
  auto state = std::make_unique<UnitState>();
  const at::Tensor mine = values.slice(0, origin(unit), origin(unit) + length(unit));
  if (wide != stored && plan_.remainder(stored) == Remainder::main_weights) {
    state->main = Buffer(accounts_, {Owner::optimizer, unit.index()}, length(unit), scalar_type(wide), unit.device());
    state->main.tensor().copy_(mine);
  }
  if (wide != stored && plan_.remainder(stored) == Remainder::kept) {
    state->rest = Buffer(accounts_, {Owner::optimizer, unit.index()}, length(unit), scalar_type(stored), unit.device());
    keep_rest(static_cast<const float*>(mine.const_data_ptr()), static_cast<Bf16*>(state->rest.data()), length(unit));
  }
  prepare_moments(unit, *state);
  whole_.prepare(unit);
  states_[index(unit)] = std::move(state);
}

void Updater::prepare_moments(const Unit& unit, UnitState& state) {
  const UnitLayout& layout = unit.layout();
  for (const MomentArray& array : moment_arrays()) {
    Runs places(layout, origin(unit), origin(unit) + length(unit),
                [&](const Slot& slot) { return array.holds(rule(slot).optimizer); });
    const at::ScalarType dtype = scalar_type(array.dtype(layout.dtype()));
    Buffer values;
    if (places.length() > 0) {
      values = Buffer(accounts_, {Owner::optimizer, unit.index()}, places.length(), dtype, unit.device());
      values.tensor().zero_();
    }
    state.moments.push_back({array, std::move(places), std::move(values)});
  }
  std::int64_t scales = 0;
  for (const Piece& piece : pieces(unit)) {
    const Optimizer& optimizer = rule(layout.slots()[static_cast<std::size_t>(piece.slot)]).optimizer;
    state.scales_of.push_back(scales);
    scales += scale_bytes(piece, optimizer, layout.dtype()) / size_of(Dtype::f32);
    if (first_moment(optimizer) == 0) continue;
    const Moment& moment = state.moments[0];
    const std::int64_t begin = moment.places.at(piece.begin);
    moment.values.tensor().slice(0, begin, begin + piece.end - piece.begin).fill_(first_moment(optimizer));
  }
  if (scales == 0) return;
  state.scales = Buffer(accounts_, {Owner::optimizer, unit.index()}, scales, at::kFloat, unit.device());
  state.scales.tensor().zero_();
}

std::vector<Piece> Updater::pieces(const Unit& unit) const {
  return unit.layout().pieces_between(origin(unit), origin(unit) + length(unit));
}

void Updater::prepare_late(Unit& unit) {
  const UnitLayout& layout = unit.layout();
  const at::ScalarType wide = scalar_type(accumulation(layout.dtype()));
  const at::Tensor values = at::zeros({layout.length()}, at::TensorOptions().dtype(wide));
  const at::Tensor mine =
      at::from_blob(unit.stored_at(origin(unit)), {length(unit)}, at::TensorOptions().dtype(unit.dtype()));
  values.slice(0, origin(unit), origin(unit) + length(unit)).copy_(mine);
  prepare(unit, values);
}

const Buffer* Updater::main(const Unit& unit) const {
  const auto& state = states_[index(unit)];
  return state && state->main ? &state->main : nullptr;
}

UpdateRange Updater::range(Unit& unit, const Gradients& gradients, const std::vector<Piece>& pieces,
                           std::size_t which) {
  const Piece& piece = pieces[which];
  UnitState& state = *states_[index(unit)];
  const Dtype dtype = unit.layout().dtype();
  const Dtype wide = accumulation(dtype);
  const Slot& slot = unit.layout().slots()[static_cast<std::size_t>(piece.slot)];
  const std::int64_t begin = piece.begin - origin(unit);
  UpdateRange range;
  range.dtype = dtype;
  range.count = piece.end - piece.begin;
  range.first = piece.begin - slot.begin;
  range.narrow_gradient = gradients.dtype(unit.index()) != wide;
  range.gradient =
      element(gradients.data(unit.index()), piece.begin - gradients.origin(unit.index()), range.gradient_dtype());
  add_moments(range, unit, piece, which);
  if (dtype == wide) {
    range.main = unit.stored_at(piece.begin);
    return range;
  }
  range.remainder = plan_.remainder(dtype);
  range.parameter = unit.stored_at(piece.begin);
  if (state.main) range.main = element(state.main.data(), begin, wide);
  if (state.rest) range.rest = element(state.rest.data(), begin, dtype);
  return range;
}

void Updater::add_moments(UpdateRange& range, const Unit& unit, const Piece& piece, std::size_t which) const {
  const UnitState& state = *states_[index(unit)];
  const Optimizer& optimizer = rule(unit.layout().slots()[static_cast<std::size_t>(piece.slot)]).optimizer;
  range.in_block = piece.begin % kStateBlock;
  for (const Moment& moment : state.moments) {
    if (!moment.array.holds(optimizer)) continue;
    const auto i = static_cast<std::size_t>(moment.array.moment);
    const Dtype dtype = moment.array.dtype(range.dtype);
    range.moments[i] = element(moment.values.data(), moment.places.at(piece.begin), dtype);
    if (dtype == Dtype::u8)
      range.scales[i] = static_cast<float*>(state.scales.data()) + state.scales_of[which] +
                        static_cast<std::int64_t>(i) * scales(piece);
  }
}

UpdateFactors Updater::factors(const Slot& slot, double scale, double lr_factor) const {
  const auto parameter = static_cast<std::size_t>(slot.index);
  const ParameterRule& rule = rules_[parameter];
  const std::int64_t step = steps_[parameter];
  const std::uint64_t stream = derived(seed_, static_cast<std::uint64_t>(slot.index));
  return {.scale = scale,
          .lr = learning_rate(rule.optimizer) * lr_factor * rule.lr_scale,
          .step = step,
          .seed = derived(stream, static_cast<std::uint64_t>(step))};
}

// What the parameters' next step takes, those that are `present`.
WholeTensors::Factors Updater::count_step(const UnitLayout& layout, const std::vector<char>& present, double scale,
                                          double lr_factor) {
  WholeTensors::Factors result(layout.slots().size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const Slot& slot = layout.slots()[i];
    if (!present[static_cast<std::size_t>(slot.index)]) continue;
    ++steps_[static_cast<std::size_t>(slot.index)];
    result[i] = factors(slot, scale, lr_factor);
  }
  return result;
}

void Updater::update_piece(const Unit& unit, std::size_t which, const Optimizer& optimizer,
                           const UpdateFactors& factors, const UpdateRange& range) {
  const auto* const torch = std::get_if<TorchOptimizer>(&optimizer);
  if (torch == nullptr) return update(optimizer, factors, range);
  torch_step(unit, which, *torch).run(factors, range);
}

TorchStep& Updater::torch_step(const Unit& unit, std::size_t which, const TorchOptimizer& optimizer) {
  auto& steps = states_[index(unit)]->torch;
  if (steps.size() <= which) steps.resize(which + 1);
  if (!steps[which]) steps[which] = std::make_unique<TorchStep>(optimizer, accounts_, unit.index());
  return *steps[which];
}

void Updater::step(Unit& unit, const Gradients& gradients, const std::vector<char>& present, double scale,
                   double lr_factor) {
  const UnitLayout& layout = unit.layout();
  const WholeTensors::Factors factors = count_step(layout, present, scale, lr_factor);
  const std::vector<Piece> owned = pieces(unit);
  std::vector<WholeTensors::Stretch> whole;
  for (std::size_t which = 0; which < owned.size(); ++which) {
    const Piece& piece = owned[which];
    const auto slot = static_cast<std::size_t>(piece.slot);
    if (!factors[slot]) continue;
    const Optimizer& optimizer = rule(layout.slots()[slot]).optimizer;
    const UpdateRange stretch = range(unit, gradients, owned, which);
    if (whole_work(optimizer)) {
      whole.push_back({piece.slot, piece.begin, stretch});
    } else {
      update_piece(unit, which, optimizer, *factors[slot], stretch);
    }
  }
  whole_.step(unit, factors, whole);
}

void Updater::adopt(Unit& unit) {
  const auto& state = states_[index(unit)];
  if (!state) return;
  const void* written = element(unit.whole().data, origin(unit), unit.layout().dtype());
  if (state->rest)
    drop_misfits(static_cast<const Bf16*>(written), static_cast<Bf16*>(state->rest.data()), length(unit));
  if (!state->main) return;
  float* main = static_cast<float*>(state->main.data());
  if (unit.layout().dtype() == Dtype::bf16) {
    adopt_changed(static_cast<const Bf16*>(written), main, length(unit));
  } else {
    adopt_changed(static_cast<const Fp16*>(written), main, length(unit));
  }
}

}  // namespace zero

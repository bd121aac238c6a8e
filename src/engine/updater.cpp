#include "engine/updater.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "base/half.h"

namespace zero {
namespace {

char* element(void* data, std::int64_t index, Dtype dtype) {
  return static_cast<char*>(data) + index * size_of(dtype);
}

// The unit's element `i` of the stored parameters this rank updates.
char* stored(Unit& unit, std::int64_t i) {
  const Dtype dtype = unit.layout().dtype();
  return unit.sharded() ? element(unit.shard().data, i - unit.shard_begin(), dtype)
                        : element(unit.whole().data, i, dtype);
}

template <class Narrow>
void adopt_changed(const Narrow* written, float* main, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    Narrow rounded;
    narrow(main[i], rounded);
    if (widen(rounded) != widen(written[i])) main[i] = widen(written[i]);
  }
}

}  // namespace

Updater::Updater(const Layout& layout, const Plan& plan, const Optimizer& optimizer, const Options& options,
                 const std::vector<ParameterInfo>& infos, Accounts& accounts)
    : optimizer_(optimizer),
      sharded_(plan[State::optimizer].placement == Placement::sharded),
      steps_(infos.size()),
      states_(layout.units().size()),
      accounts_(accounts) {
  const double decay = std::visit([](const auto& o) { return o.weight_decay; }, optimizer_);
  for (const ParameterInfo& info : infos) {
    Group group{decay, 1.0};
    for (const ParamGroup& candidate : options.groups) {
      if (!candidate.takes || !candidate.takes(info)) continue;
      group = {candidate.weight_decay.value_or(decay), candidate.lr_scale};
      break;
    }
    groups_.push_back(group);
  }
}

std::int64_t Updater::length(const Unit& unit) const {
  return sharded_ ? unit.layout().shard_length() : unit.layout().length();
}

void Updater::prepare(Unit& unit, const at::Tensor& values) {
  at::NoGradGuard no_grad;
  const Dtype wide = accumulation(unit.layout().dtype());
  auto state = std::make_unique<UnitState>();
  if (wide != unit.layout().dtype()) {
    state->main = Buffer(accounts_, Owner::optimizer, length(unit), scalar_type(wide), unit.device());
    state->main.tensor().copy_(values.slice(0, origin(unit), origin(unit) + length(unit)));
  }
  for (int moment = 0; moment < moments(optimizer_); ++moment) {
    Buffer& buffer =
        state->moments.emplace_back(accounts_, Owner::optimizer, length(unit), scalar_type(wide), unit.device());
    buffer.tensor().zero_();
  }
  states_[index(unit)] = std::move(state);
}

void Updater::prepare_late(Unit& unit) {
  const UnitLayout& layout = unit.layout();
  const at::ScalarType wide = scalar_type(accumulation(layout.dtype()));
  const at::Tensor values = at::zeros({layout.length()}, at::TensorOptions().dtype(wide));
  const at::Tensor mine =
      at::from_blob(stored(unit, origin(unit)), {length(unit)}, at::TensorOptions().dtype(unit.dtype()));
  values.slice(0, origin(unit), origin(unit) + length(unit)).copy_(mine);
  prepare(unit, values);
}

const Buffer* Updater::main(const Unit& unit) const {
  const auto& state = states_[index(unit)];
  return state && state->main ? &state->main : nullptr;
}

UpdateRange Updater::range(Unit& unit, const Gradients& gradients, std::int64_t begin, std::int64_t end) {
  UnitState& state = *states_[index(unit)];
  const Dtype dtype = unit.layout().dtype();
  const Dtype wide = accumulation(dtype);
  UpdateRange range;
  range.dtype = dtype;
  range.count = end - begin;
  range.gradient = element(gradients.data(unit.index()), begin - gradients.origin(unit.index()), wide);
  for (std::size_t i = 0; i < state.moments.size(); ++i)
    range.moments[i] = element(state.moments[i].data(), begin - origin(unit), wide);
  range.main = state.main ? element(state.main.data(), begin - origin(unit), wide) : stored(unit, begin);
  range.parameter = state.main ? stored(unit, begin) : nullptr;
  return range;
}

void Updater::step(Unit& unit, const Gradients& gradients, const std::vector<char>& present, double scale,
                   double lr_factor) {
  const UnitLayout& layout = unit.layout();
  for (const Slot& slot : layout.slots())
    if (present[static_cast<std::size_t>(slot.index)]) ++steps_[static_cast<std::size_t>(slot.index)];
  for (const Piece& piece : sharded_ ? layout.pieces(unit.rank()) : layout.pieces()) {
    const auto parameter = static_cast<std::size_t>(layout.slots()[static_cast<std::size_t>(piece.slot)].index);
    if (!present[parameter]) continue;
    const Group& group = groups_[parameter];
    update(optimizer_, {scale, learning_rate(lr_factor) * group.lr_scale, group.weight_decay, steps_[parameter]},
           range(unit, gradients, piece.begin, piece.end));
  }
}

void Updater::adopt(Unit& unit) {
  const auto& state = states_[index(unit)];
  if (!state || !state->main) return;
  float* main = static_cast<float*>(state->main.data());
  const void* written = element(unit.whole().data, origin(unit), unit.layout().dtype());
  if (unit.layout().dtype() == Dtype::bf16) {
    adopt_changed(static_cast<const Bf16*>(written), main, length(unit));
  } else {
    adopt_changed(static_cast<const Fp16*>(written), main, length(unit));
  }
}

}  // namespace zero

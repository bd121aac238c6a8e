// Takes over the state of another engine, by name.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>

#include "backwards/unwatched.h"
#include "base/elements.h"
#include "base/text.h"
#include "engine/impl.h"
#include "partition/state_pieces.h"
#include "partition/tiles.h"
#include "partition/transitions.h"
#include "persist/gathered.h"
#include "zero/agreement.h"
#include "zero/error.h"

namespace zero {

// What a source has, read to where this rank holds it.
class Engine::Impl::Loading {
 public:
  Loading(Impl& engine, StateSource& source, const StateFit& fit) : engine_(engine), source_(source), fit_(fit) {
    for (std::size_t i = 0; i < source.tensors().size(); ++i) index_.emplace(source.tensors()[i].key, i);
  }

  void load(Unit& unit) {
    Updater& updater = engine_.updater_;
    const bool in_place = has_all(unit);
    if (!in_place) updater.forget(unit);
    engine_.each_parameter(unit, [&](const HeldState& held) { read(held); });
    if (engine_.delayed_) engine_.delayed_->forget(unit);
    if (!unit.layout().trainable() && !keeps(unit)) return;
    if (!in_place) updater.prepare_late(unit);
    updater.each_state(unit, [&](const HeldState& held) { read(held); });
    updater.resume_torch(
        unit, [&](const Slot& slot, std::int64_t begin, std::int64_t end) { return fields(slot, begin, end); });
    updater.store(unit);
  }

  void load_buffers() {
    for (const auto& [name, tensor, persistent] : engine_.replicated_) {
      if (tensor.numel() == 0 || !persistent) continue;
      const std::size_t index = index_.at({name, StateKind::buffer, ""});
      const at::Tensor values =
          at::empty(tensor.sizes(), tensor.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
      source_.read(index, 0, source_.tensors()[index].numel(), values.mutable_data_ptr());
      const c10::InferenceMode assigned_in_inference(tensor.is_inference());
      tensor.detach().copy_(values);
    }
  }

 private:
  bool keeps(const Unit& unit) const {
    return std::ranges::any_of(unit.layout().slots(), [&](const Slot& slot) {
      return slot.numel > 0 && fit_.kept[static_cast<std::size_t>(slot.index)] != 0;
    });
  }

  // Whether all that is kept of it is there to be written over.
  bool has_all(const Unit& unit) const {
    bool all = engine_.updater_.prepared(unit) && keeps(unit);
    engine_.updater_.each_state(unit, [&](const HeldState& held) {
      all = all && held.torch == nullptr && index_.contains({held.slot->name, held.kind, held.part});
    });
    return all;
  }

  // Where the source has it: what it has not is as it was, or begins.
  void read(const HeldState& held) {
    const auto found = index_.find({held.slot->name, held.kind, held.part});
    if (found == index_.end()) return;
    Device& device = engine_.accounts_.device();
    if (held.in_place(device)) return read(found->second, held.slot->index, held.begin, held.end, held.memory);
    const Dtype dtype = source_.tensors()[found->second].dtype;
    std::vector<char> values(bytes_of(held.count(), dtype));
    read(found->second, held.slot->index, held.begin, held.end, values.data());
    held.write(device, {values.data(), held.count(), dtype});
  }

  void read(std::size_t tensor, int parameter, std::int64_t begin, std::int64_t end, void* memory) {
    const StateTensor& described = source_.tensors()[tensor];
    writer_.write(
        {engine_.order_of(described, parameter), begin, end, described.dtype, memory},
        [&](std::int64_t first, std::int64_t last, void* values) { source_.read(tensor, first, last, values); });
  }

  // Of a TorchOptimizer's stretch of a parameter.
  TorchFields fields(const Slot& slot, std::int64_t begin, std::int64_t end) {
    TorchFields fields;
    for (auto at = index_.lower_bound({slot.name, StateKind::optimizer, ""});
         at != index_.end() && at->first.name == slot.name && at->first.kind == StateKind::optimizer; ++at) {
      const StateTensor& described = source_.tensors()[at->second];
      const bool number = described.shape.empty();
      at::Tensor& field = fields[at->first.part];
      const std::vector<std::int64_t> shape(number ? 0 : 1, end - begin);
      field = at::empty(shape, at::TensorOptions().dtype(scalar_type(described.dtype)));
      read(at->second, slot.index, number ? 0 : begin, number ? 1 : end, field.mutable_data_ptr());
    }
    return fields;
  }

  Impl& engine_;
  StateSource& source_;
  const StateFit& fit_;
  std::map<StateKey, std::size_t> index_;
  StretchWriter writer_;
};

// Throws ConfigError, on every rank, where it does not fit on one.
StateFit Engine::Impl::agree_on_state(const StateSource& source) {
  const std::vector<std::string> lines = lines_of(source.tensors(), source.scalars());
  StateFit fit = fit_state(expected_state(), buffers_of_state().tensors, source.tensors(), source.scalars());
  std::string text;
  if (!fit.faults.empty()) text = rank_text() + ": the state to load is not one of this engine:";
  for (const std::string& fault : fit.faults) text += "\n  - " + fault;
  std::optional<Disagreement> found;
  exchange_.run({.kind = Exchange::Kind::load,
                 .run =
                     [&](const Groups& groups) {
                       if (groups.size() == 1) return;
                       const Communicator& all = groups.along(Axis::data);
                       found = disagreement(all, lines);
                       for (const std::string& told : gather_texts(all, text))
                         if (text.empty()) text = told;
                     },
                 .lane = Exchange::Lane::control});
  if (found)
    throw ConfigError(rank_text() + ": the ranks load different states: " + found->values,
                      "load the same state on every rank");
  if (text.empty()) return fit;
  throw ConfigError(text,
                    "load what an engine of the same model, optimizer and precision had, or let the optimizer's state "
                    "begin anew: allow_new_optimizer, zero train --allow-new-optimizer");
}

void Engine::Impl::load_state(StateSource& source) {
  check_alive();
  look_at_buffers();
  TiledSource tiled(source, tiles_);
  take_over(tiled);
}

// Throws CheckpointError, on every rank, where files of it are damaged; then another may be taken over.
void Engine::Impl::take_over(StateSource& source) {
  check_between_steps("load_state()");
  check_not_gathered("load_state()");
  check_parameters();
  check_module();
  catch_up("load_state()");
  settle_parameters();
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  const TierMeter::Apart apart;
  const StateFit fit = agree_on_state(source);
  const Exchange::Changing changing(exchange_);
  told_.reset();
  micro_batch_.end_forward();
  pager_->forget();
  broken_ = "load_state() failed halfway: some of the state is another one than the rest";
  LoadFault fault;
  try {
    resume(source.scalars());
    Loading loading(*this, source, fit);
    for (auto& unit : units_)
      if (unit->adopted()) loading.load(*unit);
    loading.load_buffers();
  } catch (const CheckpointError& error) {
    fault = {.text = error.what(), .damaged = true};
  } catch (const std::exception& error) {
    fault = {.text = *error.what() ? error.what() : "it failed"};
  }
  agree_on_loading(fault);
  behind_->reset();
  for (auto& unit : units_) {
    for (const at::Tensor& parameter : unit->parameters()) parameter.unsafeGetTensorImpl()->bump_version();
    if (updater_.has_main(*unit)) publish(*unit, Exchange::Kind::load);
  }
  renew(Exchange::Kind::load);
  broken_ = nullptr;
}

// But for what belongs to a unit.
void Engine::Impl::resume(const StateScalars& scalars) {
  std::vector<std::int64_t> updates;
  for (const ParameterInfo& info : infos_) {
    const auto found = scalars.updates.find(info.name);
    updates.push_back(found == scalars.updates.end() ? 0 : found->second);  // of a frozen one that is not there
  }
  steps_ = scalars.steps;
  skipped_ = scalars.skipped_steps;
  consumed_ = scalars.micro_batches;
  seed_ = scalars.seed;
  updater_.resume(seed_, std::move(updates));
  if (const auto& scaler = scalars.loss_scaler; scaler && scaler_.dynamic())
    scaler_.resume(scaler->value, scaler->clean_steps, static_cast<int>(scaler->overflows_left));
  if (float8_) {
    for (std::size_t i = 0; i < infos_.size(); ++i)
      if (const auto found = scalars.float8.find(infos_[i].name); found != scalars.float8.end())
        float8_->resume(static_cast<int>(i), found->second);
    float8_->set_loss_scale(scaler_.value());
  }
  sums_.clear();
  max_norms_.forget();
  micro_batch_.reseed(seed_);
  number_from(0);
}

// Throws, on every rank, where one of them failed.
void Engine::Impl::agree_on_loading(const LoadFault& fault) {
  std::string faults;
  std::int64_t others = 0;  // that are no damage
  exchange_.run({.kind = Exchange::Kind::load,
                 .count = 1,
                 .run =
                     [&](const Groups& groups) {
                       const Communicator& all = groups.along(Axis::data);
                       faults = gather_faults(all, fault.text);
                       for (const std::int64_t other : gather_numbers(all, fault.text.empty() || fault.damaged ? 0 : 1))
                         others += other;
                     },
                 .lane = Exchange::Lane::control});
  if (faults.empty()) return;
  if (others == 0) throw CheckpointError("it was loaded in part: " + faults);
  throw StateError("the state could not be read: " + faults, "end the engine, and build another one to load into");
}

}  // namespace zero

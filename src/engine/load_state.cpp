// Takes over the state of another engine, by name.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>

#include "backwards/paged_activations.h"
#include "backwards/unwatched.h"
#include "base/elements.h"
#include "base/text.h"
#include "comm/gathered_texts.h"
#include "engine/engine_saving.h"
#include "partition/state_pieces.h"
#include "partition/tiles.h"
#include "persist/gathered.h"
#include "zero/agreement.h"
#include "zero/error.h"

namespace zero {

// What a source has, read to where this rank holds it.
class Saving::Loading {
 public:
  Loading(Saving& engine, StateSource& source, const StateFit& fit) : engine_(engine), source_(source), fit_(fit) {
    for (std::size_t i = 0; i < source.tensors().size(); ++i) index_.emplace(source.tensors()[i].key, i);
  }

  void load(Unit& unit) {
    Updater& updater = engine_.parameters_.updater();
    load_base(unit);
    load_errors(unit);
    const bool in_place = has_all(unit);
    if (!in_place) updater.states().forget(unit);
    engine_.each_parameter(unit, [&](const StateSpan& held) { read(held); });
    if (engine_.parameters_.delayed() != nullptr) engine_.parameters_.delayed()->forget(unit);
    if (!unit.layout().trainable() && !keeps(unit)) return;
    if (!in_place) updater.states().prepare_late(unit);
    updater.states().each(unit, [&](const StateSpan& held) { read(held); });
    updater.resume_torch(
        unit, [&](const Slot& slot, std::int64_t begin, std::int64_t end) { return fields(slot, begin, end); });
    updater.states().store(unit);
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
  bool has(const std::vector<StateTensor>& all) const {
    return std::ranges::all_of(all, [&](const StateTensor& each) {
      const auto found = index_.find(each.key);
      return found != index_.end() && source_.tensors()[found->second] == each;
    });
  }

  // Where all of it is there: else it begins with the unit as it is.
  void load_base(Unit& unit) {
    if (!unit.sends_differences() || !has(engine_.bases_of(unit))) return;
    unit.begin_base();
    engine_.each_base(unit, [&](const StateSpan& held) { read(held); });
  }

  // Where those of the same mesh are there, of as many micro-batches: else they begin anew.
  void load_errors(Unit& unit) {
    if (!has(engine_.errors_of(unit))) return;
    engine_.accumulation_.gradients().coded().open(unit);
    engine_.each_error(unit, [&](const StateSpan& held) { read(held); });
  }

  bool keeps(const Unit& unit) const {
    return std::ranges::any_of(unit.layout().slots(), [&](const Slot& slot) {
      return slot.numel > 0 && fit_.kept[static_cast<std::size_t>(slot.index)] != 0;
    });
  }

  // Whether all that is kept of it is there to be written over.
  bool has_all(const Unit& unit) const {
    bool all = engine_.parameters_.updater().states().prepared(unit) && keeps(unit);
    engine_.parameters_.updater().states().each(unit, [&](const StateSpan& held) {
      all = all && held.torch == nullptr && index_.contains({held.slot->name, held.kind, held.part});
    });
    return all;
  }

  // Where the source has it: what it has not is as it was, or begins.
  void read(const StateSpan& held) {
    const auto found = index_.find({held.slot->name, held.kind, held.part});
    if (found == index_.end()) return;
    Device& device = engine_.ranks_.device();
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

  Saving& engine_;
  StateSource& source_;
  const StateFit& fit_;
  std::map<StateKey, std::size_t> index_;
  StretchWriter writer_;
};

// Throws ConfigError, on every rank, where it does not fit on one.
StateFit Saving::agree_on_state(const StateSource& source) {
  const std::vector<std::string> lines = lines_of(source.tensors(), source.scalars());
  StateFit fit = fit_state(expected_state(), buffers_of_state().tensors, source.tensors(), source.scalars());
  std::string text;
  if (!fit.faults.empty())
    text = "rank " + std::to_string(ranks_.rank()) + ": the state to load is not one of this engine:";
  for (const std::string& fault : fit.faults) text += "\n  - " + fault;
  std::optional<Disagreement> found;
  if (ranks_.all_ranks() > 1)
    ranks_.confer(Exchange::Kind::load, [&](const Communicator& all) {
      found = disagreement(all, lines);
      for (const std::string& told : gather_texts(all, text))
        if (text.empty()) text = told;
    });
  if (found)
    throw ConfigError("rank " + std::to_string(ranks_.rank()) + ": the ranks load different states: " + found->values,
                      "load the same state on every rank");
  if (text.empty()) return fit;
  throw ConfigError(text,
                    "load what an engine of the same model, optimizer and precision had, or let the optimizer's state "
                    "begin anew: allow_new_optimizer, zero train --allow-new-optimizer");
}

void Saving::load_state(StateSource& source) {
  entry_("load_state()", {}, [&] {
    look_at_buffers();
    TiledSource tiled(source, trained_.tiles());
    take_over(tiled);
  });
}

// Throws CheckpointError, on every rank, where files of it are damaged; then another may be taken over, and the engine
// goes on.
void Saving::take_over(StateSource& source) {
  constexpr Needs needs{.alive = false,
                        .module = true,
                        .unchanged = true,
                        .no_scope = true,
                        .between_steps = true,
                        .latest = true,
                        .unwatched = true,
                        .apart = true};
  entry_("load_state()", needs, [&] { read_over(source); });
}

void Saving::read_over(StateSource& source) {
  parameters_.wait_for_publication();
  parameters_.micro_batch().activations().settle();
  const StateFit fit = agree_on_state(source);
  const Exchange::Changing changing(ranks_.exchange());
  parameters_.invalidate_state();
  parameters_.micro_batch().end_forward();
  parameters_.pager().forget();
  for (auto& unit : parameters_.units()) parameters_.pager().outdate(*unit, /*rewritten=*/true);
  Critical critical(life_, "load_state() failed halfway: some of the state is another one than the rest");
  LoadFault fault;
  try {
    resume(source.scalars());
    accumulation_.gradients().coded().drop();
    Loading loading(*this, source, fit);
    for (auto& unit : parameters_.units())
      if (unit->adopted()) loading.load(*unit);
    loading.load_buffers();
  } catch (const CheckpointError& error) {
    fault = {.text = error.what(), .damaged = true};
  } catch (const std::exception& error) {
    fault = {.text = *error.what() ? error.what() : "it failed"};
  }
  agree_on_loading(fault);
  behind_->reset();
  for (auto& unit : parameters_.units()) {
    unit->changed();
    if (parameters_.updater().states().has_main(*unit)) parameters_.publish(*unit, Exchange::Kind::load);
  }
  parameters_.renew(Exchange::Kind::load);
  critical.mend();
}

// But for what belongs to a unit.
void Saving::resume(const StateScalars& scalars) {
  std::vector<std::int64_t> updates;
  for (const ParameterInfo& info : trained_.infos()) {
    const auto found = scalars.updates.find(info.name);
    updates.push_back(found == scalars.updates.end() ? 0 : found->second);  // of a frozen one that is not there
  }
  step_.resume(scalars.steps, scalars.skipped_steps);
  parameters_.resume(scalars.seed, std::move(updates));
  accumulation_.resume(scalars);
}

// Throws, on every rank, where one of them failed.
void Saving::agree_on_loading(const LoadFault& fault) {
  std::string faults;
  std::int64_t others = 0;  // that are no damage
  ranks_.confer(Exchange::Kind::load, [&](const Communicator& all) {
    faults = gather_faults(all, fault.text);
    for (const std::int64_t other : gather_numbers(all, fault.text.empty() || fault.damaged ? 0 : 1)) others += other;
  });
  if (faults.empty()) return;
  accumulation_.gradients().coded().drop();  // the ranks may have come to others
  if (others == 0) throw CheckpointError("it was loaded in part: " + faults);
  throw StateError("the state could not be read: " + faults, "end the engine, and build another one to load into");
}

}  // namespace zero

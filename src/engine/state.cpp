// What an engine needs to go on, told by name.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "backwards/unwatched.h"
#include "base/elements.h"
#include "device/torch/devices.h"
#include "engine/engine_saving.h"
#include "partition/state_pieces.h"
#include "partition/tiles.h"
#include "zero/agreement.h"
#include "zero/error.h"

namespace zero {
namespace {

using Hold = StatePiece::Values::Hold;

// A tensor's own memory, as long as it is read.
std::shared_ptr<const void> memory_of(const at::Tensor& tensor) {
  const auto keep = std::make_shared<const at::Tensor>(tensor);
  return {keep, keep->const_data_ptr()};
}

Hold hold_of(Device& device, const StateSpan& held, const std::string& field, Dtype dtype) {
  if (held.torch != nullptr)
    return [torch = held.torch, field] {
      const Unwatched unwatched;
      const at::NoGradGuard no_grad;
      return memory_of(torch->fields().at(field));
    };
  if (held.in_place(device))
    return [memory = held.memory] { return std::shared_ptr<const void>(std::shared_ptr<const void>(), memory); };
  return [&device, held, dtype] {
    const auto copy = std::make_shared<std::vector<char>>(bytes_of(held.count(), dtype));
    held.read(device, {copy->data(), held.count(), dtype});
    return std::shared_ptr<const void>(copy, copy->data());
  };
}

// Whether its elements are those of the parameter, in the parameter's order.
bool of_elements(const StateTensor& tensor, const std::vector<std::int64_t>& shape) {
  switch (tensor.key.kind) {
    case StateKind::scale:
    case StateKind::row:
    case StateKind::column:
    case StateKind::buffer: return false;
    case StateKind::optimizer: return tensor.shape == shape;
    default: return true;
  }
}

// "0 of 2 x 4 x 1": a shard group, of so many, of so many ranks, of which each adds up so many micro-batches.
std::string group_in(const MeshShape& mesh, int group, int micro_batches) {
  return std::to_string(group) + " of " + std::to_string(mesh.size(Axis::replica)) + " x " +
         std::to_string(mesh.size(Axis::shard)) + " x " + std::to_string(micro_batches);
}

// The tensors of a state, and this rank's pieces of them.
class Pieces {
 public:
  Pieces(EngineRanks& ranks, std::weak_ptr<const void> valid) : ranks_(ranks), valid_(std::move(valid)) {}

  // Of parameters, each in its order of memory; those of tiles are told as those of the whole.
  void add(const std::vector<StateTensor>& tensors, std::vector<ElementOrder> orders, StateScalars& scalars,
           const Tiles& tiles) {
    JoinedState state = joined(tensors, scalars, tiles);
    tensors_ = std::move(state.tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (state.places[i]) index_.emplace(tensors[i].key, Told{*state.places[i], std::move(orders[i])});
  }

  void add(const StateSpan& held) {
    if (held.torch == nullptr) return add({held.slot->name, held.kind, held.part}, held);
    const auto first = index_.lower_bound({held.slot->name, StateKind::optimizer, ""});
    for (auto at = first; at != index_.end() && at->first.name == held.slot->name; ++at)
      if (at->first.kind == StateKind::optimizer) add_field(at->first, held);
  }

  void add_buffer(const StateTensor& described, const at::Tensor& buffer) {
    tensors_.push_back(described);
    if (buffer.numel() == 0) return;
    add_piece({{.tensor = tensors_.size() - 1}, ElementOrder(described.shape)}, 0, described.numel(), /*over=*/{},
              [buffer] { return memory_of(buffer.detach().to(at::kCPU).contiguous().resolve_conj().resolve_neg()); });
  }

  EngineState state(StateScalars scalars) && { return {std::move(scalars), std::move(tensors_), std::move(pieces_)}; }

 private:
  struct Told {
    JoinedState::Place at;
    ElementOrder order;
  };

  void add(const StateKey& key, const StateSpan& held) {
    const Told& told = index_.at(key);
    add_piece(told, held.begin, held.end, held.over,
              hold_of(ranks_.device(), held, key.part, tensors_[told.at.tensor].dtype));
  }

  void add_piece(const Told& told, std::int64_t begin, std::int64_t end, std::optional<Axis> over, Hold hold) {
    const Axis copied = over == Axis::shard ? Axis::replica : Axis::data;  // along which ranks have the same
    const bool alone = over == Axis::data;
    int copy = alone ? 0 : ranks_.mesh().at(copied, ranks_.rank()), copies = alone ? 1 : ranks_.mesh().size(copied);
    if (ranks_.tensor() != nullptr && !told.at.cut) {
      copy += ranks_.tensor()->rank() * copies;
      copies *= ranks_.tensor()->size();
    }
    pieces_.emplace_back(told.at.tensor, end - begin, copy, copies,
                         std::make_shared<StatePiece::Values>(told.order, begin, end, tensors_[told.at.tensor].dtype,
                                                              std::move(hold), valid_, told.at.stretches));
  }

  // A number is that of all elements, and told by who has the first.
  void add_field(const StateKey& key, StateSpan held) {
    if (!tensors_[index_.at(key).at.tensor].shape.empty()) return add(key, held);
    if (held.begin > 0) return;
    held.end = 1;
    add(key, held);
  }

  EngineRanks& ranks_;
  std::weak_ptr<const void> valid_;
  std::vector<StateTensor> tensors_;
  std::map<StateKey, Told> index_;  // by the parameter's own name
  std::vector<StatePiece> pieces_;
};

}  // namespace

StateScalars Saving::scalars() {
  const auto& float8 = accumulation_.float8();
  const LossScaler& scaler = accumulation_.scaler();
  StateScalars scalars{.steps = step_.steps(),
                       .skipped_steps = step_.skipped(),
                       .micro_batches = accumulation_.consumed(),
                       .seed = parameters_.micro_batch().seed()};
  for (std::size_t i = 0; i < trained_.parameters(); ++i) {
    const std::string& name = trained_.infos()[i].name;
    const int parameter = static_cast<int>(i);
    scalars.updates[name] = parameters_.updater().steps()[i];
    if (float8 && float8->takes(parameter)) scalars.float8[name] = float8->history(parameter);
  }
  if (scaler.dynamic()) scalars.loss_scaler = {scaler.value(), scaler.clean_steps(), scaler.overflows_left()};
  return scalars;
}

// Of a tensor of a parameter's state.
ElementOrder Saving::order_of(const StateTensor& tensor, int parameter) const {
  const bool like = of_elements(tensor, trained_.rules()[static_cast<std::size_t>(parameter)].shape);
  return like ? order_of(parameter) : ElementOrder(tensor.shape);
}

// Of a parameter in its unit; the order of one without elements does not matter.
ElementOrder Saving::order_of(int parameter) const {
  const auto [unit, slot] = trained_.layout().at(parameter);
  const std::vector<std::int64_t>& shape = trained_.rules()[static_cast<std::size_t>(parameter)].shape;
  if (!parameters_.unit(unit).adopted()) return ElementOrder(shape);
  return {shape, parameters_.unit(unit).own(slot).strides().vec()};
}

std::vector<ExpectedParameter> Saving::expected_state() const {
  std::vector<ExpectedParameter> all;
  for (std::size_t i = 0; i < trained_.parameters(); ++i) {
    const auto [u, s] = trained_.layout().at(static_cast<int>(i));
    const UnitLayout& unit = trained_.layout().unit(u);
    const Slot& slot = unit.slot(s);
    const ElementOrder order = order_of(slot.index);
    const bool empty = slot.numel == 0;
    ExpectedParameter each{
        .name = slot.name,
        .optimizer = std::string(name(trained_.rules()[i].optimizer)),
        .trainable = unit.trainable(),
        .plain = state_tensors(unit, slot, trained_.rules()[i], order, trained_.resolved(), /*kept=*/false),
        .kept = state_tensors(unit, slot, trained_.rules()[i], order, trained_.resolved(), /*kept=*/!empty),
        .float8 = accumulation_.float8() && accumulation_.float8()->takes(slot.index)};
    const auto* const torch = std::get_if<TorchOptimizer>(&trained_.rules()[i].optimizer);
    if (torch != nullptr && !empty)
      for (const TorchField& field : fields_kept(*torch, accumulation(unit.dtype())))
        each.fields.push_back({{slot.name, StateKind::optimizer, field.name},
                               field.dtype,
                               field.elementwise ? trained_.rules()[i].shape : std::vector<std::int64_t>()});
    all.push_back(std::move(each));
  }
  return all;
}

// As the program has them now. Throws StateError, on this rank, for what cannot be saved or loaded.
void Saving::look_at_buffers() {
  std::vector<Replicated> now = trained_.replicated(replicated_);
  for (const Replicated& each : now) {
    if (!each.persistent) continue;
    const auto refuse = [&](const std::string& why, const char* instead) {
      throw StateError("buffer '" + each.name + "' " + why, instead);
    };
    if (each.tensor.layout() != at::kStrided || !has_devices(each.tensor.device().type()))
      refuse("is now sparse, or on a device on which this build does not train", "assign dense values");
    if (Unit::of(each.tensor.unsafeGetTensorImpl()) != nullptr)
      refuse("now shares the memory of a parameter, which goes and comes", "assign a clone() of it");
  }
  replicated_ = std::move(now);
}

ExpectedBuffers Saving::buffers_of_state() const {
  ExpectedBuffers buffers;
  for (const auto& [name, tensor, persistent] : replicated_) {
    if (!persistent) {
      buffers.of_program.insert(name);
      continue;
    }
    const auto dtype = any_dtype_of(tensor.scalar_type());
    buffers.tensors.push_back({{name, StateKind::buffer, ""}, dtype.value_or(Dtype::u8), tensor.sizes().vec()});
    if (!dtype) buffers.tensors.back().shape.push_back(static_cast<std::int64_t>(tensor.element_size()));
  }
  return buffers;
}

// A state's tensors are the same on every rank.
void Saving::agree_on_buffers(const std::vector<StateTensor>& buffers) {
  if (ranks_.all_ranks() == 1) return;
  const std::vector<std::string> lines = lines_of(buffers, {});
  std::optional<Disagreement> found;
  ranks_.confer(Exchange::Kind::setup, [&](const Communicator& all) { found = disagreement(all, lines); });
  if (found)
    throw StateError(
        "rank " + std::to_string(ranks_.rank()) + ": the ranks have other buffers: " + found->values,
        "a buffer that is another on each rank is the program's: register it as one that is not persistent");
}

// What this rank has at rest of a unit's parameters, in one of the forms in which it does.
void Saving::each_at_rest(Unit& unit, StateKind kind, const std::function<BlockPart(const Slice&)>& stored,
                          const VisitState& tell) const {
  const UnitLayout& layout = unit.layout();
  const Shard held = trained_.routes().rest(State::parameter, layout);
  for (const Piece& piece : layout.pieces_between(held.begin, held.end())) {
    const Slot& slot = layout.slot(piece.slot);
    StateSpan each{.slot = &slot,
                   .kind = kind,
                   .begin = piece.begin - slot.begin,
                   .end = piece.end - slot.begin,
                   .over = held.over};
    each.lies_in(stored({piece.begin, piece.end - piece.begin}));
    tell(each);
  }
}

// As they are stored, where they are state: where they do not follow from main weights.
void Saving::each_parameter(Unit& unit, const VisitState& tell) const {
  if (parameters_.updater().states().has_main(unit)) return;
  const auto stored = [&](const Slice& elements) { return unit.stored(elements); };
  each_at_rest(unit, StateKind::parameter, stored, tell);
}

// What differences are from.
void Saving::each_base(Unit& unit, const VisitState& tell) const {
  const auto stored = [&](const Slice& elements) { return unit.stored_base(elements, Access::update); };
  each_at_rest(unit, StateKind::gathered, stored, tell);
}

std::vector<StateTensor> Saving::bases_of(const Unit& unit) const {
  std::vector<StateTensor> tensors;
  for (const Slot& slot : unit.layout().slots())
    tensors.push_back({{slot.name, StateKind::gathered, ""},
                       unit.layout().dtype(),
                       trained_.rules()[static_cast<std::size_t>(slot.index)].shape});
  return tensors;
}

void Saving::each_error(const Unit& unit, const VisitState& tell) {
  const UnitLayout& layout = unit.layout();
  const std::string group =
      group_in(ranks_.mesh(), ranks_.mesh().at(Axis::replica, ranks_.rank()), trained_.plan().accumulate());
  const auto scale = static_cast<float>(accumulation_.scaler().value());
  accumulation_.gradients().coded().each_error(unit, [&](const Slice& of, std::uint8_t* errors) {
    for (const Piece& piece : layout.pieces_between(of.begin, of.end())) {
      const Slot& slot = layout.slot(piece.slot);
      tell({.slot = &slot,
            .kind = StateKind::error,
            .part = group,
            .begin = piece.begin - slot.begin,
            .end = piece.end - slot.begin,
            .codes = CodedValues{errors, of.count, piece.begin - of.begin, scale},
            .over = Axis::data});
    }
  });
}

std::vector<StateTensor> Saving::errors_of(const Unit& unit) const {
  std::vector<StateTensor> tensors;
  for (const Slot& slot : unit.layout().slots())
    for (int group = 0; group < ranks_.mesh().size(Axis::replica); ++group)
      tensors.push_back({{slot.name, StateKind::error, group_in(ranks_.mesh(), group, trained_.plan().accumulate())},
                         Dtype::bf16,
                         trained_.rules()[static_cast<std::size_t>(slot.index)].shape});
  return tensors;
}

EngineState Saving::state(bool frozen) {
  constexpr Needs needs{.module = true, .no_scope = true, .between_steps = true, .latest = true, .unwatched = true};
  return entry_("state()", needs, [&] { return told(frozen); });
}

EngineState Saving::told(bool frozen) {
  look_at_buffers();
  parameters_.wait_for_publication();
  const std::vector<char> bases = parameters_.pager().renew_bases();
  Pieces pieces(ranks_, parameters_.state_valid());
  const Updater& updater = parameters_.updater();
  const std::vector<ExpectedParameter> expected = expected_state();
  StateScalars numbers = scalars();
  std::vector<StateTensor> of_parameters;
  std::vector<ElementOrder> orders;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const int parameter = static_cast<int>(i);
    const bool prepared = updater.states().prepared(parameters_.unit(trained_.layout().at(parameter).unit));
    if (!frozen && !expected[i].trainable && !prepared) {
      numbers.updates.erase(expected[i].name);
      continue;
    }
    if (prepared) numbers.optimizers.emplace(expected[i].name, expected[i].optimizer);
    std::vector<StateTensor> tensors = prepared ? expected[i].kept : expected[i].plain;
    if (updater.steps()[i] > 0) tensors.insert(tensors.end(), expected[i].fields.begin(), expected[i].fields.end());
    for (const StateTensor& each : tensors) {
      of_parameters.push_back(each);
      orders.push_back(order_of(each, parameter));
    }
  }
  const auto add_tensors = [&](const Unit& unit, const std::vector<StateTensor>& tensors) {
    const std::vector<Slot>& slots = unit.layout().slots();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      of_parameters.push_back(tensors[i]);
      orders.push_back(order_of(tensors[i], slots[i * slots.size() / tensors.size()].index));
    }
  };
  std::vector<Unit*> told;
  for (const auto& unit : parameters_.units())
    if (unit->adopted() && (frozen || unit->layout().trainable() || updater.states().prepared(*unit)))
      told.push_back(unit.get());
  CodedSums& coded = accumulation_.gradients().coded();
  for (const Unit* const unit : told) {
    if (bases[static_cast<std::size_t>(unit->index())] != 0) add_tensors(*unit, bases_of(*unit));
    if (coded.has_errors(*unit)) add_tensors(*unit, errors_of(*unit));
  }
  pieces.add(of_parameters, std::move(orders), numbers, trained_.tiles());
  const std::vector<StateTensor> buffers = buffers_of_state().tensors;
  agree_on_buffers(buffers);
  auto described = buffers.begin();
  for (const Replicated& each : replicated_)
    if (each.persistent) pieces.add_buffer(*described++, each.tensor);
  const auto add = [&](const StateSpan& held) { pieces.add(held); };
  for (Unit* const unit : told) {
    each_parameter(*unit, add);
    updater.states().each(*unit, add);
    if (bases[static_cast<std::size_t>(unit->index())] != 0) each_base(*unit, add);
    each_error(*unit, add);
  }
  return std::move(pieces).state(std::move(numbers));
}

}  // namespace zero

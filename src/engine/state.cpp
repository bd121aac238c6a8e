// What an engine needs to go on, told by name.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "backwards/unwatched.h"
#include "base/elements.h"
#include "device/torch/devices.h"
#include "engine/impl.h"
#include "partition/state_pieces.h"
#include "partition/tiles.h"
#include "partition/transitions.h"
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

Hold hold_of(Device& device, const HeldState& held, const std::string& field, Dtype dtype) {
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

// The tensors of a state, and this rank's pieces of them.
class Pieces {
 public:
  Pieces(Device& device, int rank, const MeshShape& mesh, std::weak_ptr<const void> valid)
      : device_(device), rank_(rank), mesh_(mesh), valid_(std::move(valid)) {}

  // Of parameters, each in its order of memory; those of tiles are told as those of the whole.
  void add(const std::vector<StateTensor>& tensors, std::vector<ElementOrder> orders, StateScalars& scalars,
           const Tiles& tiles) {
    JoinedState state = joined(tensors, scalars, tiles);
    tensors_ = std::move(state.tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (state.places[i]) index_.emplace(tensors[i].key, Told{*state.places[i], std::move(orders[i])});
  }

  void add(const HeldState& held) {
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

  void add(const StateKey& key, const HeldState& held) {
    const Told& told = index_.at(key);
    add_piece(told, held.begin, held.end, held.over, hold_of(device_, held, key.part, tensors_[told.at.tensor].dtype));
  }

  void add_piece(const Told& told, std::int64_t begin, std::int64_t end, std::optional<Axis> over, Hold hold) {
    const Axis copied = over == Axis::shard ? Axis::replica : Axis::data;  // along which ranks have the same
    const bool alone = over == Axis::data;
    pieces_.emplace_back(told.at.tensor, end - begin, alone ? 0 : mesh_.at(copied, rank_),
                         alone ? 1 : mesh_.size(copied),
                         std::make_shared<StatePiece::Values>(told.order, begin, end, tensors_[told.at.tensor].dtype,
                                                              std::move(hold), valid_, told.at.first));
  }

  // A number is that of all elements, and told by who has the first.
  void add_field(const StateKey& key, HeldState held) {
    if (!tensors_[index_.at(key).at.tensor].shape.empty()) return add(key, held);
    if (held.begin > 0) return;
    held.end = 1;
    add(key, held);
  }

  Device& device_;
  int rank_;
  MeshShape mesh_;
  std::weak_ptr<const void> valid_;
  std::vector<StateTensor> tensors_;
  std::map<StateKey, Told> index_;  // by the parameter's own name
  std::vector<StatePiece> pieces_;
};

}  // namespace

// Collective.
void Engine::Impl::check_between_steps(const char* call) {
  check_idle(call);
  settle_emptied();
  require_no_gradients(call);
}

void Engine::Impl::require_no_gradients(const char* call) const {
  if (micro_ == 0) return;
  throw StateError(rank_text() + ": " + call + " in the middle of a step: the gradients of " + std::to_string(micro_) +
                       " of its " + std::to_string(plan_.accumulate()) + " micro-batches are held",
                   "call step() once all are there, or discard() to drop them");
}

StateScalars Engine::Impl::scalars() const {
  StateScalars scalars{.steps = steps_, .skipped_steps = skipped_, .micro_batches = consumed_, .seed = seed_};
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    scalars.updates[infos_[i].name] = updater_.steps()[i];
    const int parameter = static_cast<int>(i);
    if (float8_ && float8_->takes(parameter)) scalars.float8[infos_[i].name] = float8_->history(parameter);
  }
  if (scaler_.dynamic()) scalars.loss_scaler = {scaler_.value(), scaler_.clean_steps(), scaler_.overflows_left()};
  return scalars;
}

// Of a tensor of a parameter's state.
ElementOrder Engine::Impl::order_of(const StateTensor& tensor, int parameter) const {
  const bool like = of_elements(tensor, rules_[static_cast<std::size_t>(parameter)].shape);
  return like ? order_of(parameter) : ElementOrder(tensor.shape);
}

// Of a parameter in its unit; the order of one without elements does not matter.
ElementOrder Engine::Impl::order_of(int parameter) const {
  const auto [unit, slot] = layout_.at(parameter);
  const std::vector<std::int64_t>& shape = rules_[static_cast<std::size_t>(parameter)].shape;
  if (!units_[static_cast<std::size_t>(unit)]->adopted()) return ElementOrder(shape);
  const auto& parameters = units_[static_cast<std::size_t>(unit)]->parameters();
  return {shape, parameters[static_cast<std::size_t>(slot)].strides().vec()};
}

std::vector<ExpectedParameter> Engine::Impl::expected_state() const {
  std::vector<ExpectedParameter> all;
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const auto [u, s] = layout_.at(static_cast<int>(i));
    const UnitLayout& unit = layout_.units()[static_cast<std::size_t>(u)];
    const Slot& slot = unit.slots()[static_cast<std::size_t>(s)];
    const ElementOrder order = order_of(slot.index);
    const bool empty = slot.numel == 0;
    ExpectedParameter each{.name = slot.name,
                           .optimizer = std::string(name(rules_[i].optimizer)),
                           .trainable = unit.trainable(),
                           .plain = state_tensors(unit, slot, rules_[i], order, resolved_, /*kept=*/false),
                           .kept = state_tensors(unit, slot, rules_[i], order, resolved_, /*kept=*/!empty),
                           .float8 = float8_ && float8_->takes(slot.index)};
    const auto* const torch = std::get_if<TorchOptimizer>(&rules_[i].optimizer);
    if (torch != nullptr && !empty)
      for (const TorchField& field : fields_kept(*torch, accumulation(unit.dtype())))
        each.fields.push_back({{slot.name, StateKind::optimizer, field.name},
                               field.dtype,
                               field.elementwise ? rules_[i].shape : std::vector<std::int64_t>()});
    all.push_back(std::move(each));
  }
  return all;
}

// As the program has them now. Throws StateError, on this rank, for what cannot be saved or loaded.
void Engine::Impl::look_at_buffers() {
  std::vector<Replicated> now = module_.replicated(replicated_);
  for (const Replicated& each : now) {
    if (!each.persistent) continue;
    const auto refuse = [&](const std::string& why, const char* instead) {
      throw StateError(rank_text() + ": buffer '" + each.name + "' " + why, instead);
    };
    if (each.tensor.layout() != at::kStrided || !has_devices(each.tensor.device().type()))
      refuse("is now sparse, or on a device on which this build does not train", "assign dense values");
    if (Unit::of(each.tensor.unsafeGetTensorImpl()) != nullptr)
      refuse("now shares the memory of a parameter, which goes and comes", "assign a clone() of it");
  }
  replicated_ = std::move(now);
}

ExpectedBuffers Engine::Impl::buffers_of_state() const {
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
void Engine::Impl::agree_on_buffers(const std::vector<StateTensor>& buffers) {
  if (exchange_.size() == 1) return;
  const std::vector<std::string> lines = lines_of(buffers, {});
  std::optional<Disagreement> found;
  exchange_.run({.kind = Exchange::Kind::setup,
                 .run = [&](const Groups& groups) { found = disagreement(groups.along(Axis::data), lines); },
                 .lane = Exchange::Lane::control});
  if (found)
    throw StateError(
        rank_text() + ": the ranks have other buffers: " + found->values,
        "a buffer that is another on each rank is the program's: register it as one that is not persistent");
}

// As they are stored, where they are state: where they do not follow from main weights.
void Engine::Impl::each_parameter(Unit& unit, const TellState& tell) const {
  if (updater_.has_main(unit)) return;
  const UnitLayout& layout = unit.layout();
  const Held held = held_at_rest(resolved_, State::parameter, layout, unit.rank());
  for (const Piece& piece : layout.pieces_between(held.begin, held.end())) {
    const Slot& slot = layout.slots()[static_cast<std::size_t>(piece.slot)];
    HeldState each{.slot = &slot,
                   .kind = StateKind::parameter,
                   .begin = piece.begin - slot.begin,
                   .end = piece.end - slot.begin,
                   .over = held.over};
    each.lies_in(unit.stored({piece.begin, piece.end - piece.begin}));
    tell(each);
  }
}

void Engine::Impl::each_state(Unit& unit, const TellState& tell) const {
  each_parameter(unit, tell);
  updater_.each_state(unit, tell);
}

EngineState Engine::Impl::state(bool frozen) {
  check_alive();
  check_between_steps("state()");
  catch_up("state()");
  check_not_gathered("state()");
  check_module();
  look_at_buffers();
  renormalise();
  settle_parameters();
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  if (!told_) told_ = std::make_shared<const int>(0);
  Pieces pieces(accounts_.device(), exchange_.rank(), exchange_.mesh(), told_);
  const std::vector<ExpectedParameter> expected = expected_state();
  StateScalars numbers = scalars();
  std::vector<StateTensor> of_parameters;
  std::vector<ElementOrder> orders;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto unit = static_cast<std::size_t>(layout_.at(static_cast<int>(i)).unit);
    const bool prepared = updater_.prepared(*units_[unit]);
    if (!frozen && !expected[i].trainable && !prepared) {
      numbers.updates.erase(expected[i].name);
      continue;
    }
    if (prepared) numbers.optimizers.emplace(expected[i].name, expected[i].optimizer);
    std::vector<StateTensor> tensors = prepared ? expected[i].kept : expected[i].plain;
    if (updater_.steps()[i] > 0) tensors.insert(tensors.end(), expected[i].fields.begin(), expected[i].fields.end());
    for (const StateTensor& each : tensors) {
      of_parameters.push_back(each);
      orders.push_back(order_of(each, static_cast<int>(i)));
    }
  }
  pieces.add(of_parameters, std::move(orders), numbers, tiles_);
  const std::vector<StateTensor> buffers = buffers_of_state().tensors;
  agree_on_buffers(buffers);
  auto described = buffers.begin();
  for (const Replicated& each : replicated_)
    if (each.persistent) pieces.add_buffer(*described++, each.tensor);
  for (const auto& unit : units_)
    if (unit->adopted() && (frozen || unit->layout().trainable() || updater_.prepared(*unit)))
      each_state(*unit, [&](const HeldState& held) { pieces.add(held); });
  return std::move(pieces).state(std::move(numbers));
}

}  // namespace zero

#include "state/unit.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "partition/element_order.h"
#include "partition/transitions.h"
#include "state/dispatch_hook.h"
#include "zero/error.h"

namespace zero {
namespace {

// A dense tensor keeps its memory order (channels last, say) inside the flat array.
std::vector<std::int64_t> strides_in_unit(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), at::TensorOptions().device(at::kMeta)).strides().vec();
}

at::Tensor slot_view(const at::Tensor& flat, const Slot& slot, const at::Tensor& parameter) {
  return flat.as_strided(parameter.sizes(), strides_in_unit(parameter), slot.begin);
}

}  // namespace

std::vector<std::int64_t> memory_order(const at::Tensor& parameter) {
  return ElementOrder(parameter.sizes().vec(), strides_in_unit(parameter)).dimensions();
}

Unit::Unit(const UnitLayout& layout, int index, int rank, const Plan& plan, std::vector<at::Tensor> parameters,
           const GatherWire& wire, Accounts& accounts)
    : layout_(layout),
      index_(index),
      rank_(rank),
      sharded_(movement(plan).gathers),
      published_(movement(plan).publishes),
      home_(held_at_rest(plan, State::parameter, layout, rank)),
      hops_(gather_hops(layout.mesh(), movement(plan).within, /*to_all=*/true,
                        coded_bytes(layout.shard_length(), layout.dtype(), plan[State::parameter].wire))),
      parameters_(std::move(parameters)),
      wire_(wire),
      accounts_(accounts) {}

Unit::~Unit() {
  if (!adopted()) return;
  try {
    abandon(!sharded_ || gathered_exactly());
  } catch (const std::exception&) {
    abandon(false);  // there is no memory for the values
  }
}

Buffer Unit::flatten() const {
  const dispatch_hook::Off off;
  at::NoGradGuard no_grad;
  Buffer values =
      accounts_.buffer({Owner::gathered, index_}, layout_.length(), scalar_type(accumulation(layout_.dtype())));
  for (const auto& [begin, end] : layout_.gaps()) values.tensor().slice(0, begin, end).zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    slot_view(values.tensor(), layout_.slots()[i], parameters_[i]).copy_(parameters_[i].detach());
  return values;
}

void Unit::adopt(Buffer values) {
  const dispatch_hook::Off off;
  at::NoGradGuard no_grad;
  make_home();
  const at::Tensor& home = sharded_ ? shard_.tensor() : memory_.tensor();
  home.copy_(values.tensor().slice(0, home_.begin, home_.end()));
  values.reset();
  storage_ = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(layout_.bytes()),
                          at::DataPtr(memory_.data(), this, &tag, device()), nullptr, false);
  for (const at::Tensor& parameter : parameters_) before_.push_back(parameter.detach());
  const at::Tensor whole =
      at::empty({0}, at::TensorOptions().dtype(dtype()).device(device())).set_(storage_, 0, {layout_.length()}, {1});
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    places_.push_back(slot_view(whole, layout_.slots()[i], parameters_[i]));
    parameters_[i].set_data(places_[i]);
  }
  ready_ = true;
  if (sharded_) evict();
}

void Unit::settle() {
  before_.clear();
}

void Unit::restore() {
  for (std::size_t i = 0; i < before_.size(); ++i) parameters_[i].set_data(before_[i]);
  before_.clear();
  places_.clear();
  storage_ = c10::Storage();
}

void Unit::take_back(bool with_values) {
  const dispatch_hook::Off off;
  at::NoGradGuard no_grad;
  std::string misfits;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& parameter = parameters_[i];
    if (fault(static_cast<int>(i)).empty()) continue;
    const Slot& slot = layout_.slots()[i];
    const at::Tensor values = parameter.detach();
    const at::Tensor& place = places_[i];
    parameter.set_data(place);
    if (!with_values) continue;
    if (values.sizes() == place.sizes()) {
      place.copy_(values);
    } else {
      misfits += (misfits.empty() ? "" : ", ") + ("'" + slot.name + "'");
    }
  }
  if (misfits.empty()) return;
  throw StateError("rank " + std::to_string(rank_) + ": values of another shape were put in the place of parameters " +
                       misfits + " inside zero::gather",
                   "load values of the model's own shapes");
}

// Where the unit is at rest.
void Unit::make_home() {
  if (sharded_) {
    if (wire_.native()) common_ = accounts_.common_memory(layout_.bytes());
    const std::int64_t begin = home_.begin * size_of(layout_.dtype());
    shard_ = common_ ? accounts_.buffer_in({common_, static_cast<char*>(common_.get()) + begin},
                                           {Owner::parameter, index_}, home_.count, dtype())
                     : accounts_.buffer({Owner::parameter, index_}, home_.count, dtype());
    return;
  }
  memory_ = published_ ? accounts_.visible_buffer({Owner::parameter, index_}, layout_.length(), dtype())
                       : accounts_.buffer({Owner::parameter, index_}, layout_.length(), dtype());
}

void Unit::point_at(void* data) {
  storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(data, this, &tag, device()));
}

void Unit::forbid(const char* why) {
  ready_ = false;
  storage_.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "zero: the parameters of unit '" + layout_.name() + "' " + why +
      "; read them by operators on the engine's thread, or inside zero::gather");
}

View Unit::make_room() {
  if (!memory_ && !common_) memory_ = scratch();
  return full();
}

View Unit::full() {
  return view_of(memory_ ? memory_.data() : common_.get(), layout_.dtype(), 0, layout_.length(), device());
}

void Unit::privatise() {
  if (!common_) return;
  memory_ = copy_of_full();
  point_at(memory_.data());
}

Buffer Unit::copy_of_full() {
  Buffer copy = scratch();
  accounts_.device().copy(copy.data(), full().data, layout_.bytes());
  return copy;
}

void Unit::write_full(const Buffer& values) {
  accounts_.device().copy(full().data, values.data(), layout_.bytes());
}

void Unit::share() {
  if (!common_) return;
  memory_.reset();
  if (ready_) point_at(common_.get());
}

View Unit::home() {
  return home(home_);
}

View Unit::home(const Slice& slice) {
  const Buffer& memory = sharded_ ? shard_ : memory_;
  return view_of(memory.data(), layout_.dtype(), slice.begin - home_.begin, slice.count, device());
}

void* Unit::stored_at(std::int64_t element) {
  return home({element, 0}).data;
}

void Unit::gather(const Groups& groups, View whole, bool exactly) {
  wire_.gather(groups, layout_, home(), whole, exactly);
}

void Unit::serve(const Groups& groups, bool exactly) {
  const Buffer unwanted = scratch();
  gather(groups, view_of(unwanted.data(), layout_.dtype(), 0, layout_.length(), device()), exactly);
}

void Unit::install() {
  storage_.unsafeGetStorageImpl()->clear_data_ptr_access_error_msg_();
  point_at(full().data);
  ready_ = true;
}

void Unit::keep_full() {
  if (!sharded_) return;
  const std::int64_t element = size_of(layout_.dtype());
  accounts_.device().copy(shard_.data(), static_cast<const char*>(memory_.data()) + home_.begin * element,
                          home_.count * element);
}

void Unit::suspend() {
  forbid("are being gathered after a step");
}

void Unit::evict() {
  memory_.reset();
  if (!adopted()) return;
  point_at(nullptr);
  forbid("are sharded over the ranks and not resident");
}

std::size_t Unit::slot_at(std::int64_t element) const {
  const auto& slots = layout_.slots();
  return static_cast<std::size_t>(
      std::find_if(slots.begin(), slots.end() - 1, [&](const Slot& slot) { return element < slot.end(); }) -
      slots.begin());
}

const std::string& Unit::name_at(std::int64_t element) const {
  return layout_.slots()[slot_at(element)].name;
}

std::string Unit::fault(int slot) const {
  const at::Tensor& parameter = parameters_[static_cast<std::size_t>(slot)];
  const Slot& place = layout_.slots()[static_cast<std::size_t>(slot)];
  const bool ours =
      parameter.has_storage() && parameter.storage().unsafeGetStorageImpl() == storage_.unsafeGetStorageImpl();
  if (ours && parameter.storage_offset() == place.begin && parameter.numel() == place.numel) return {};
  return "parameter '" + place.name + "' no longer lies where the engine put it: set_data, to() or a copy replaced it";
}

void Unit::abandon(bool with_values) {
  const dispatch_hook::Off off;
  at::NoGradGuard no_grad;
  c10::StorageImpl* storage = storage_.unsafeGetStorageImpl();
  if (ready_ && with_values) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : parameters_)
      copies.push_back(
          at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options()).copy_(parameter.detach()));
    // Kept alive under what autograd saved.
    void* const data = full().data;
    using Keep = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
    auto* keep = new Keep(memory_.release(), common_);
    storage->set_data_ptr_noswap(at::DataPtr(
        data, keep, [](void* pair) { delete static_cast<Keep*>(pair); }, device()));
    for (std::size_t i = 0; i < copies.size(); ++i) parameters_[i].set_data(copies[i]);
  } else {
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, device()));
    storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
        "zero: the engine that held the parameters of unit '" + layout_.name() +
        "' in parts has ended, and their values with it; call engine.release() before it ends to keep them");
  }
  places_.clear();
  storage_ = c10::Storage();
}

}  // namespace zero

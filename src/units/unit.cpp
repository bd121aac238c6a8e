#include "units/unit.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "backwards/unwatched.h"
#include "base/elements.h"
#include "base/random.h"
#include "deferred/deferred_tensors.h"
#include "partition/element_order.h"
#include "units/for_unit.h"
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

Unit::Unit(const UnitLayout& layout, int index, const Routes& routes, std::vector<at::Tensor> parameters, UnitCuts cuts,
           const Buffer& codes, Accounts& accounts, TierLoader* loader)
    : layout_(layout),
      index_(index),
      routes_(routes),
      shard_(routes.rest(State::parameter, layout)),
      use_(routes.use(layout)),
      keep_(routes.keep(layout)),
      exact_use_(routes.use(layout, /*exactly=*/true)),
      parameters_(std::move(parameters)),
      cuts_(std::move(cuts)),
      codes_(codes),
      accounts_(accounts),
      loader_(loader) {}

Unit::~Unit() {
  if (!adopted()) return;
  try {
    abandon(!paged() || gathered_exactly());
  } catch (const std::exception&) {
    abandon(false);  // there is no memory for the values
  }
}

Buffer Unit::flatten(bool in_part) const {
  const Unwatched unwatched;
  at::NoGradGuard no_grad;
  Buffer values =
      accounts_.buffer({Owner::gathered, index_}, layout_.length(), scalar_type(accumulation(layout_.dtype())));
  for (const auto& [begin, end] : layout_.gaps()) values.tensor().slice(0, begin, end).zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Slot& slot = layout_.slots()[i];
    const at::Tensor place = slot_view(values.tensor(), slot, own(static_cast<int>(i)));
    if (cuts_.axis != nullptr) {
      flatten_first(i, place);
    } else if (!deferred_tensors::deferred(parameters_[i])) {
      place.copy_(parameters_[i].detach());
    } else if (in_part) {
      const std::int64_t begin = std::max(slot.begin, shard_.begin),
                         end = std::min(slot.end(), shard_.begin + shard_.count);
      if (begin < end)
        deferred_tensors::read_into(parameters_[i], begin - slot.begin, values.tensor().narrow(0, begin, end - begin));
    } else if (rank() == 0) {
      deferred_tensors::compute_into(parameters_[i], place);
    }
  }
  return values;
}

std::int64_t Unit::sources() const {
  if (cuts_.axis != nullptr || !gathers() || !device().is_cpu()) return 0;
  std::uint64_t mark = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!deferred_tensors::deferred(parameters_[i])) continue;
    const DeferredValues::Source* const source = deferred_tensors::source_of(parameters_[i]);
    if (source == nullptr || source->mark == 0) return 0;
    mark = derived(mark ^ source->mark, i) | 1;
  }
  return static_cast<std::int64_t>(mark);
}

void Unit::adopt(Buffer values, Staging& staging) {
  const Unwatched unwatched;
  at::NoGradGuard no_grad;
  make_shard();
  write_shard(staging, values.data(), accumulation(layout_.dtype()));
  values.reset();
  places_.reserve(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Slot& slot = layout_.slots()[i];
    Place& place = places_.emplace_back(Place{this, i, {}, {}});
    const at::Tensor mine = own(static_cast<int>(i));
    const auto bytes = static_cast<std::size_t>(slot.numel * size_of(layout_.dtype()));
    const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, pointer_to(place, memory_.data()), nullptr,
                               false);
    place.parameter = at::empty({0}, at::TensorOptions().dtype(dtype()).device(device()))
                          .set_(storage, 0, mine.sizes(), strides_in_unit(mine));
    place.shown = shown(i, place.parameter);
    before_.push_back(parameters_[i].detach());
    given_.push_back(parameters_[i].scalar_type());
    parameters_[i].set_data(place.shown);
  }
  adopted_ = ready_ = true;
  if (paged()) evict();
}

void Unit::cast() {
  const Unwatched unwatched;
  for (at::Tensor& parameter : parameters_) {
    before_.push_back(parameter.detach());
    given_.push_back(parameter.scalar_type());
    parameter.set_data(parameter.detach().to(dtype()));
  }
}

void Unit::cast_back() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].set_data(parameters_[i].detach().to(given_[i]));
}

void Unit::settle() {
  before_.clear();
}

// Of a place that was being made where memory ended, nobody else has anything yet.
void Unit::restore() {
  for (std::size_t i = 0; i < before_.size(); ++i) {
    parameters_[i].set_data(before_[i]);
    storage_of(places_[i]).set_data_ptr_noswap(at::DataPtr(nullptr, device()));
  }
  before_.clear();
  given_.clear();
  places_.clear();
  adopted_ = false;
}

void Unit::take_back(bool with_values) {
  const Unwatched unwatched;
  at::NoGradGuard no_grad;
  std::string misfits;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& parameter = parameters_[i];
    if (fault(static_cast<int>(i)).empty()) continue;
    const Slot& slot = layout_.slots()[i];
    const at::Tensor values = parameter.detach();
    const auto& [unit, number, place, shown] = places_[i];
    parameter.set_data(shown);
    if (!with_values) continue;
    if (values.sizes() == shown.sizes()) {
      place.copy_(cut(i) ? cuts_.axis->own(values, *cut(i)) : values);
    } else {
      misfits += (misfits.empty() ? "" : ", ") + ("'" + slot.name + "'");
    }
  }
  if (misfits.empty()) return;
  throw StateError("rank " + std::to_string(rank()) + ": values of another shape were put in the place of parameters " +
                       misfits + " inside zero::gather",
                   "load values of the model's own shapes");
}

// Where the unit is at rest.
void Unit::make_shard() {
  const std::int64_t element = size_of(layout_.dtype()), begin = shard_.begin * element, bytes = shard_.count * element;
  if (loader_ != nullptr) {
    shard_block_ = loader_->store().take(bytes, Owner::parameter, index_);
    return;
  }
  if (paged()) {
    if (routes_.codec() == Wire::native) common_ = accounts_.common_memory(layout_.bytes());
    if (shared() && !common()) {
      const Slice part = routes_.keep_in_common(layout_).to;
      kept_block_ = accounts_.take_common({common_, static_cast<char*>(common_.get()) + part.begin * element},
                                          (part.count - shard_.count) * element, {Owner::gathered, index_});
    }
    shard_block_ = common_ ? accounts_.take_common({common_, static_cast<char*>(common_.get()) + begin}, bytes,
                                                   {Owner::parameter, index_})
                           : accounts_.take(bytes, {Owner::parameter, index_});
    return;
  }
  memory_ = routes_.publishes() ? accounts_.visible_buffer({Owner::parameter, index_}, layout_.length(), dtype())
                                : accounts_.buffer({Owner::parameter, index_}, layout_.length(), dtype());
}

c10::StorageImpl& Unit::storage_of(const Place& place) const {
  return *place.parameter.storage().unsafeGetStorageImpl();
}

// Null where there is no whole.
at::DataPtr Unit::pointer_to(Place& place, void* whole) const {
  const std::int64_t begin = layout_.slots()[place.slot].begin;
  return {whole == nullptr ? nullptr : at_element(whole, begin, layout_.dtype()), &place, &tag, device()};
}

void Unit::point_at(void* data) {
  for (Place& place : places_) storage_of(place).set_data_ptr_noswap(pointer_to(place, data));
}

void Unit::forbid(const char* why) {
  ready_ = false;
  const std::string text = "zero: the parameters of unit '" + layout_.name() + "' " + why +
                           "; read them by operators on the engine's thread, or inside zero::gather";
  for (const Place& place : places_) storage_of(place).release_data_and_set_meta_custom_data_ptr_error_msg_(text);
}

View Unit::make_room(bool exactly) {
  const bool there = common_ || (keeps_base_whole() && !exactly);
  if (!memory_ && !there) memory_ = scratch();
  return room();
}

View Unit::room() {
  return view_of(memory_ ? memory_.data() : common_.get(), layout_.dtype(), 0, layout_.length(), device());
}

View Unit::full() {
  return keeps_base_whole() && !memory_ ? kept() : room();
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

View Unit::shard() {
  return shard(shard_);
}

View Unit::shard(const Slice& slice) {
  void* const data = paged() ? shard_block_.view().data : memory_.data();
  return view_of(data, layout_.dtype(), slice.begin - shard_.begin, slice.count, device());
}

BlockPart Unit::stored(const Slice& elements, Access way) {
  const std::int64_t element = size_of(layout_.dtype());
  Block& block = paged() ? shard_block_ : memory_.block();
  return {&block, (elements.begin - shard_.begin) * element, elements.count * element, way};
}

void Unit::write_shard(Staging& staging, const void* values, Dtype dtype) {
  const std::int64_t element = size_of(dtype);
  Device& computing = accounts_.computing(loader_ == nullptr ? Tier::device : loader_->store().tier());
  Block mine = accounts_.borrowed(at_element(values, shard_.begin, dtype), shard_.count * element, Owner::parameter);
  each_stretch(
      staging, shard_.count,
      [&](std::int64_t first, std::int64_t count) {
        return std::vector{BlockPart{&mine, first * element, count * element, Access::read},
                           stored({shard_.begin + first, count}, Access::write)};
      },
      [&](std::span<void* const> at, std::int64_t, std::int64_t count) {
        computing.run(Convert{at[0], dtype, at[1], layout_.dtype(), count});
      });
}

std::shared_ptr<TierLoad> Unit::bring() {
  return brought_ = bring_to(memory_);
}

std::shared_ptr<TierLoad> Unit::bring_to(Buffer& whole) {
  return brings() ? loader_->bring(shard_block_, whole, shard_.begin * size_of(layout_.dtype())) : nullptr;
}

void Unit::gather(const MeshGroups& groups, View whole, bool exactly) {
  const View here =
      loader_ == nullptr ? shard() : view_of(whole.data, layout_.dtype(), shard_.begin, shard_.count, device());
  if (exactly) return go(groups, exact_use_, here, whole);
  if (keep_.hops.empty()) return go(groups, use_, here, whole);
  if (keeps_whole() && shared()) return bring_in_common(groups, here);
  if (keeps_whole() && !keeps_base_whole()) return go(groups, keep_, here, whole);
  const View kept = bring_kept(groups, here);
  if (!keeps_whole()) go(groups, use_, kept, whole);
}

void Unit::go(const MeshGroups& groups, const Route& route, ConstView from, View to) const {
  if (route.codec == Wire::native) {
    groups.carry_out(route, from, to);
    return;
  }
  const Coder coder{accounts_.device(), view_of(codes_.data(), Dtype::u8, 0, codes_.count(), device())};
  groups.carry_out(route, from, to, &coder);
}

View Unit::kept() {
  if (!kept_) kept_ = accounts_.buffer({Owner::gathered, index_}, keep_.to.count, dtype());
  return view_of(kept_.data(), layout_.dtype(), 0, keep_.to.count, device());
}

// All ranks come to the same gathers of a unit, their own or others', so that all of them keep it, or none.
View Unit::bring_kept(const MeshGroups& groups, ConstView shard) {
  const View all = kept();
  if (differs(keep_.codec) && has_kept_ != Has::all) {
    Route whole = keep_;
    whole.codec = Wire::native;
    go(groups, whole, has_kept_ == Has::slice ? own_base() : shard, all);
    kept_is_new_ = kept_is_new_ || has_kept_ == Has::none;
  }
  if (!kept_is_new_) go(groups, keep_, shard, all);
  has_kept_ = Has::all;
  kept_is_new_ = true;
  return all;
}

View Unit::own_base() {
  return view_of(kept().data, layout_.dtype(), shard_.begin - keep_.to.begin, shard_.count, device());
}

bool Unit::renew_base(const MeshGroups& groups) {
  if (!sends_differences() || has_kept_ == Has::none) return false;
  if (!kept_is_new_) bring_kept(groups, shard());
  return true;
}

void Unit::drop_base() {
  if (!differs(keep_.codec)) return;
  outdate(/*rewritten=*/true);
  kept_.reset();
}

BlockPart Unit::stored_base(const Slice& elements, Access way) {
  const std::int64_t element = size_of(layout_.dtype());
  return {&kept_.block(), (elements.begin - keep_.to.begin) * element, elements.count * element, way};
}

// Nobody writes gaps but here.
void Unit::begin_base() {
  accounts_.device().copy(own_base().data, shard().data, shard_.count * size_of(layout_.dtype()));
  has_kept_ = Has::slice;
  kept_is_new_ = true;
}

void Unit::bring_in_common(const MeshGroups& groups, ConstView shard) {
  if (kept_is_new_) return;
  const Route route = routes_.keep_in_common(layout_);
  go(groups, route, shard, view_of(common_.get(), layout_.dtype(), route.to.begin, route.to.count, device()));
  groups.along(Axis::shard).barrier().wait();
  kept_is_new_ = true;
}

void Unit::serve(const MeshGroups& groups, bool exactly) {
  if ((shared() || keeps_base_whole()) && !exactly) return gather(groups, shared() ? full() : View(), exactly);
  Buffer unwanted = scratch();
  const View whole = view_of(unwanted.data(), layout_.dtype(), 0, layout_.length(), device());
  const auto arrival = bring_to(unwanted);
  if (arrival) for_unit(*this, "the parameters", [&] { arrival->follow(); });
  gather(groups, whole, exactly);
}

void Unit::install() {
  for (const Place& place : places_) storage_of(place).clear_data_ptr_access_error_msg_();
  point_at(full().data);
  ready_ = true;
}

void Unit::keep_full(Staging& staging) {
  if (paged()) write_shard(staging, memory_.data(), layout_.dtype());
}

void Unit::suspend() {
  forbid("are being gathered after a step");
}

void Unit::evict() {
  brought_.reset();
  memory_.reset();
  if (!adopted()) return;
  point_at(nullptr);
  forbid(gathers() ? "are sharded over the ranks and not resident" : "are on another tier and not resident");
}

at::Tensor Unit::part_of(const at::Tensor& flat, const at::Tensor& parameter) const {
  const Place& place = *place_of(parameter.unsafeGetTensorImpl());
  if (cut(place.slot)) return whole_of(place.slot, slot_view(flat, slot_of(parameter), place.parameter));
  return flat.as_strided(parameter.sizes(), parameter.strides(), slot_of(parameter).begin + parameter.storage_offset());
}

std::string Unit::fault(int slot) const {
  const at::Tensor& parameter = parameters_[static_cast<std::size_t>(slot)];
  const Slot& of = layout_.slot(slot);
  const at::Tensor& shown = places_[static_cast<std::size_t>(slot)].shown;
  const bool ours = parameter.has_storage() && parameter.storage().is_alias_of(shown.storage());
  if (ours && parameter.storage_offset() == 0 && parameter.numel() == shown.numel()) return {};
  return "parameter '" + of.name + "' no longer lies where the engine put it: set_data, to() or a copy replaced it";
}

void Unit::abandon(bool with_values) {
  const Unwatched unwatched;
  at::NoGradGuard no_grad;
  if (ready_ && with_values && !cuts_.any()) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : parameters_)
      copies.push_back(
          at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options()).copy_(parameter.detach()));
    return settle_on(copies);
  }
  for (const Place& place : places_) {
    c10::StorageImpl& storage = storage_of(place);
    storage.set_data_ptr_noswap(at::DataPtr(nullptr, device()));
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
        "zero: the engine that held the parameters of unit '" + layout_.name() +
        (loader_ == nullptr ? "' in parts" : "' on another tier") +
        " has ended, and their values with it; call engine.release() before it ends to keep them");
  }
  end();
}

void Unit::give_back(const at::Tensor& values, bool as_computed) {
  const Unwatched unwatched;
  at::NoGradGuard no_grad;
  if (!adopted()) return as_computed ? void() : cast_back();
  std::vector<at::Tensor> copies;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    const at::Tensor mine = own(static_cast<int>(i));
    const at::Tensor from = whole_of(i, values.defined() ? slot_view(values, layout_.slots()[i], mine) : mine.detach());
    copies.push_back(at::empty_strided(parameter.sizes(), parameter.strides(),
                                       parameter.options().dtype(as_computed ? dtype() : given_[i]))
                         .copy_(from));
  }
  settle_on(copies);
}

// The parameters; what autograd saved of the unit's memory stays as it is.
void Unit::settle_on(const std::vector<at::Tensor>& values) {
  char* const data = static_cast<char*>(full().data);
  using Keep = std::pair<std::shared_ptr<void>, std::shared_ptr<void>>;
  const Keep keep((memory_ || !keeps_base_whole() ? memory_ : kept_).release(), common_);
  for (const Place& place : places_) {
    void* const at = at_element(data, layout_.slots()[place.slot].begin, layout_.dtype());
    storage_of(place).set_data_ptr_noswap(at::DataPtr(
        at, new Keep(keep), [](void* pair) { delete static_cast<Keep*>(pair); }, device()));
    parameters_[place.slot].set_data(values[place.slot]);
  }
  end();
}

void Unit::end() {
  places_.clear();
  adopted_ = false;
}

}  // namespace zero

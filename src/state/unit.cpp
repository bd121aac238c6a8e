#include "state/unit.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>

#include "state/window.h"

namespace zero {
namespace {

at::Device device_of(const std::vector<at::Tensor>& parameters) {
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

// A dense tensor keeps its memory order (channels last, say) inside the flat array.
std::vector<std::int64_t> strides_in_unit(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), at::TensorOptions().device(at::kMeta)).strides().vec();
}

at::Tensor slot_view(const at::Tensor& flat, const Slot& slot, const at::Tensor& parameter) {
  return flat.as_strided(parameter.sizes(), strides_in_unit(parameter), slot.begin);
}

}  // namespace

Unit::Unit(const UnitLayout& layout, int index, int rank, const Row& row, std::vector<at::Tensor> parameters,
           Accounts& accounts)
    : layout_(layout),
      index_(index),
      rank_(rank),
      sharded_(row.placement == Placement::sharded),
      parameters_(std::move(parameters)),
      accounts_(accounts),
      device_(device_of(parameters_)) {}

Unit::~Unit() {
  if (adopted()) abandon();
}

Buffer Unit::flatten() const {
  const window::Blind blind;
  at::NoGradGuard no_grad;
  Buffer values(accounts_, Owner::gathered, layout_.length(), scalar_type(accumulation(layout_.dtype())), device_);
  for (const auto& [begin, end] : layout_.gaps()) values.tensor().slice(0, begin, end).zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    slot_view(values.tensor(), layout_.slots()[i], parameters_[i]).copy_(parameters_[i].detach());
  return values;
}

void Unit::adopt(Buffer values) {
  const window::Blind blind;
  at::NoGradGuard no_grad;
  memory_ = Buffer(accounts_, sharded_ ? Owner::gathered : Owner::parameter, layout_.length(), dtype(), device_);
  memory_.tensor().copy_(values.tensor());
  values.reset();
  if (sharded_) {
    shard_ = Buffer(accounts_, Owner::parameter, layout_.shard_length(), dtype(), device_);
    shard_.tensor().copy_(memory_.tensor().slice(0, shard_begin(), shard_begin() + layout_.shard_length()));
  }
  storage_ = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(layout_.bytes()),
                          at::DataPtr(memory_.data(), this, &tag, device_), nullptr, false);
  const at::Tensor flat = at::empty({0}, memory_.tensor().options()).set_(storage_, 0, {layout_.length()}, {1});
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    parameters_[i].set_data(slot_view(flat, layout_.slots()[i], parameters_[i]));
  ready_ = true;
  if (sharded_) evict();
}

void Unit::point_at(void* data) {
  storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(data, this, &tag, device_));
}

void Unit::forbid(const char* why) {
  ready_ = false;
  storage_.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "zero: the parameters of unit '" + layout_.name() + "' " + why +
      "; read them by operators on the engine's thread, or inside zero::gather");
}

View Unit::make_room() {
  if (!memory_) memory_ = Buffer(accounts_, Owner::gathered, layout_.length(), dtype(), device_);
  return whole();
}

View Unit::whole() {
  return view_of(memory_.data(), layout_.dtype(), 0, layout_.length(), device_);
}

View Unit::shard() {
  const std::int64_t count = layout_.shard_length();
  if (sharded_) return view_of(shard_.data(), layout_.dtype(), 0, count, device_);
  return view_of(memory_.data(), layout_.dtype(), shard_begin(), count, device_);
}

void Unit::serve(const Communicator& communicator) {
  const Buffer unwanted = scratch();
  communicator.all_gather(shard(), view_of(unwanted.data(), layout_.dtype(), 0, layout_.length(), device_)).wait();
}

void Unit::install() {
  storage_.unsafeGetStorageImpl()->clear_data_ptr_access_error_msg_();
  point_at(memory_.data());
  ready_ = true;
}

void Unit::keep_whole() {
  if (!sharded_) return;
  const std::int64_t bytes = layout_.shard_length() * size_of(layout_.dtype());
  std::memcpy(shard_.data(), static_cast<const char*>(memory_.data()) + rank_ * bytes, static_cast<std::size_t>(bytes));
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

const std::string& Unit::name_at(std::int64_t element) const {
  const auto& slots = layout_.slots();
  return std::find_if(slots.begin(), slots.end() - 1, [&](const Slot& slot) { return element < slot.end(); })->name;
}

std::string Unit::fault(int slot) const {
  const at::Tensor& parameter = parameters_[static_cast<std::size_t>(slot)];
  const Slot& place = layout_.slots()[static_cast<std::size_t>(slot)];
  const bool ours =
      parameter.has_storage() && parameter.storage().unsafeGetStorageImpl() == storage_.unsafeGetStorageImpl();
  if (ours && parameter.storage_offset() == place.begin && parameter.numel() == place.numel) return {};
  return "parameter '" + place.name + "' no longer lies where the engine put it: set_data, to() or a copy replaced it";
}

void Unit::abandon() {
  const window::Blind blind;
  at::NoGradGuard no_grad;
  c10::StorageImpl* storage = storage_.unsafeGetStorageImpl();
  if (ready_) {
    // The memory's own storage keeps it alive under what autograd saved.
    auto* keep = new at::Tensor(memory_.take());
    storage->set_data_ptr_noswap(at::DataPtr(
        keep->mutable_data_ptr(), keep, [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, device_));
    for (at::Tensor& parameter : parameters_)
      parameter.set_data(
          at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options()).copy_(parameter.detach()));
  } else {
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, device_));
    for (at::Tensor& parameter : parameters_) parameter.set_data(at::empty({0}, parameter.options()));
  }
  storage_ = c10::Storage();
}

}  // namespace zero

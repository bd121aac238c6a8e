#include "engine/module_tensors.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "engine/module_inventory.h"
#include "engine/trained_module.h"
#include "units/unit.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::array<std::pair<TensorType, at::ScalarType>, 19> kTypesOfBoth{{
    {TensorType::boolean, at::kBool},
    {TensorType::u8, at::kByte},
    {TensorType::i8, at::kChar},
    {TensorType::f8_e5m2, at::kFloat8_e5m2},
    {TensorType::f8_e4m3, at::kFloat8_e4m3fn},
    {TensorType::f8_e8m0, at::kFloat8_e8m0fnu},
    {TensorType::f8_e4m3fnuz, at::kFloat8_e4m3fnuz},
    {TensorType::f8_e5m2fnuz, at::kFloat8_e5m2fnuz},
    {TensorType::i16, at::kShort},
    {TensorType::u16, at::kUInt16},
    {TensorType::f16, at::kHalf},
    {TensorType::bf16, at::kBFloat16},
    {TensorType::i32, at::kInt},
    {TensorType::u32, at::kUInt32},
    {TensorType::f32, at::kFloat},
    {TensorType::c64, at::kComplexFloat},
    {TensorType::f64, at::kDouble},
    {TensorType::i64, at::kLong},
    {TensorType::u64, at::kUInt64},
}};

void require_whole(const std::string& name, const at::Tensor& tensor) {
  const Unit* const unit = Unit::of(tensor.unsafeGetTensorImpl());
  if (unit == nullptr || unit->owner->held(*unit)) return;
  throw StateError("parameter " + in_quotes(name) + " is an engine's, and not whole here",
                   "hold zero::gather(module.parameters()) while weights are loaded or saved");
}

class Listing {
 public:
  explicit Listing(Tiles tiles) : tiles_(std::move(tiles)) {}

  void add(const std::string& own_name, const at::Tensor& tensor) {
    const auto tile = tiles_.find(own_name);
    const std::string& name = tile == tiles_.end() ? own_name : tile->second.whole;
    const auto [at, fresh] = places_.emplace(tensor.unsafeGetTensorImpl(), tensors_.size());
    if (!fresh) return tensors_[at->second].names.push_back(name);
    require_whole(own_name, tensor);
    tensors_.push_back({{name}, tensor.detach(), tile == tiles_.end() ? std::nullopt : std::optional(tile->second)});
  }
  std::vector<ModuleTensor> result() && { return std::move(tensors_); }

 private:
  Tiles tiles_;
  std::unordered_map<const void*, std::size_t> places_;
  std::vector<ModuleTensor> tensors_;
};

}  // namespace

std::vector<std::int64_t> ModuleTensor::shape() const {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  if (tile) shape.front() = tile->all;
  return shape;
}

std::int64_t ModuleTensor::first() const {
  return tile ? tensor.numel() / tile->rows * tile->begin : 0;
}

std::vector<ModuleTensor> tensors_of(const torch::nn::Module& module) {
  Listing listing(tiles_of(module));
  std::vector<Registered> all;
  add_registered(module, all);
  for (const bool buffers : {false, true})
    for (const Registered& each : all)
      if (each.buffer == buffers && each.persistent) listing.add(each.info.name, each.tensor);
  return std::move(listing).result();
}

std::optional<TensorType> tensor_type_of(at::ScalarType type) {
  const auto found = std::ranges::find(kTypesOfBoth, type, &std::pair<TensorType, at::ScalarType>::second);
  return found == kTypesOfBoth.end() ? std::nullopt : std::optional(found->first);
}

std::optional<at::ScalarType> scalar_type_of(TensorType type) {
  const auto found = std::ranges::find(kTypesOfBoth, type, &std::pair<TensorType, at::ScalarType>::first);
  return found == kTypesOfBoth.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace zero

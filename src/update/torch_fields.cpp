#include "update/torch_fields.h"

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <sstream>

#include "device/torch/dtypes.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::int64_t kFieldsTried = 7;

// A number is fp64, int64 or one byte.
at::Tensor number(const c10::IValue& value) {
  if (value.isBool()) return at::scalar_tensor(value.toBool(), at::kByte);
  if (value.isInt()) return at::scalar_tensor(value.toInt(), at::kLong);
  if (value.isDouble()) return at::scalar_tensor(value.toDouble(), at::kDouble);
  return {};
}

// As what it was before number(): its type says so. A value for each element is of the parameter's part, which has one
// dimension where the parameter has none.
c10::IValue as_value(const at::Tensor& field, const c10::IValue& like) {
  if (like.isBool()) return field.item<std::int64_t>() != 0;
  if (like.isInt()) return field.item<std::int64_t>();
  if (like.isDouble()) return field.item<double>();
  const at::Tensor& tensor = like.toTensor();
  return tensor.numel() == field.numel() ? field.reshape(tensor.sizes()) : field;
}

// With its tensors on that device.
torch::serialize::InputArchive archive_of(torch::serialize::OutputArchive& written, c10::Device device) {
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream, device);
  return archive;
}

// On the host.
std::map<std::string, c10::IValue> values_of(const torch::optim::OptimizerParamState& state) {
  torch::serialize::OutputArchive written;
  state.serialize(written);
  torch::serialize::InputArchive archive = archive_of(written, at::kCPU);
  std::map<std::string, c10::IValue> values;
  for (const std::string& key : archive.keys()) archive.read(key, values[key]);
  return values;
}

torch::optim::OptimizerParamState* state_of(torch::optim::Optimizer& made, const at::Tensor& parameter) {
  const auto found = made.state().find(parameter.unsafeGetTensorImpl());
  return found == made.state().end() ? nullptr : found->second.get();
}

}  // namespace

TorchFields fields_of(torch::optim::Optimizer& made, const at::Tensor& parameter, std::int64_t numel,
                      const std::string& label) {
  TorchFields fields;
  const torch::optim::OptimizerParamState* const state = state_of(made, parameter);
  if (state == nullptr) return fields;
  for (const auto& [key, value] : values_of(*state)) {
    const at::Tensor tensor = value.isTensor() ? value.toTensor().detach() : number(value);
    const bool known = tensor.defined() && any_dtype_of(tensor.scalar_type());
    if (!known || tensor.dim() > 1 || (tensor.dim() == 1 && tensor.numel() != numel))
      throw ConfigError("optimizer " + label + " keeps '" + key +
                            "', which is neither a number nor a value for each element of a parameter",
                        "its state cannot be carried over");
    fields[key] = tensor.contiguous();
  }
  return fields;
}

void set_fields(torch::optim::Optimizer& made, const at::Tensor& parameter, const TorchFields& fields) {
  torch::optim::OptimizerParamState* const state = state_of(made, parameter);
  if (state == nullptr) return;
  torch::serialize::OutputArchive written;
  for (const auto& [key, value] : values_of(*state))
    if (const auto found = fields.find(key); found != fields.end()) written.write(key, as_value(found->second, value));
  torch::serialize::InputArchive archive = archive_of(written, parameter.device());
  state->serialize(archive);
}

std::unique_ptr<torch::optim::Optimizer> begun(const TorchOptimizer& optimizer, at::Tensor& parameter) {
  auto made = optimizer.make({parameter});
  parameter.mutable_grad() = at::zeros_like(parameter);
  made->step();
  parameter.mutable_grad() = at::Tensor();
  return made;
}

std::vector<TorchField> fields_kept(const TorchOptimizer& optimizer, Dtype wide) {
  at::Tensor parameter = at::ones({kFieldsTried}, at::TensorOptions().dtype(scalar_type(wide))).requires_grad_(true);
  const auto made = begun(optimizer, parameter);
  std::vector<TorchField> fields;
  for (const auto& [key, value] : fields_of(*made, parameter, kFieldsTried, optimizer.label))
    fields.push_back({key, *any_dtype_of(value.scalar_type()), value.dim() == 1});
  return fields;
}

}  // namespace zero

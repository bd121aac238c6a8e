#include "update/torch_steps.h"

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <optional>
#include <sstream>
#include <typeinfo>
#include <variant>

#include "device/torch/dtypes.h"
#include "device/torch/torch_device.h"
#include "memory/torch/arena_allocator.h"
#include "memory/torch/device_reports.h"
#include "update/torch_classes.h"
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

// Of a parameter that it has, of `numel` elements; none where it keeps nothing. Throws ConfigError for what is neither
// a tensor as long as the parameter nor a number.
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

// Makes an optimizer of `parameter`, a leaf, and lets it step once without a gradient, so that its state is there.
std::unique_ptr<torch::optim::Optimizer> begun(const TorchOptimizer& optimizer, at::Tensor& parameter) {
  auto made = optimizer.make({parameter});
  parameter.mutable_grad() = at::zeros_like(parameter);
  made->step();
  parameter.mutable_grad() = at::Tensor();
  return made;
}

}  // namespace

std::vector<TorchField> fields_kept(const TorchOptimizer& optimizer, Dtype wide) {
  at::Tensor parameter = at::ones({kFieldsTried}, at::TensorOptions().dtype(scalar_type(wide))).requires_grad_(true);
  const auto made = begun(optimizer, parameter);
  std::vector<TorchField> fields;
  for (const auto& [key, value] : fields_of(*made, parameter, kFieldsTried, optimizer.label))
    fields.push_back({key, *any_dtype_of(value.scalar_type()), value.dim() == 1});
  return fields;
}

namespace {

namespace optim = torch::optim;
using TorchOptions = std::unique_ptr<optim::OptimizerOptions>;

// All that a schedule of LibTorch's asks of a group.
class RateOptions final : public optim::OptimizerCloneableOptions<RateOptions> {
 public:
  explicit RateOptions(double lr) : lr_(lr) {}
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }

 private:
  double lr_;
};

template <HasTorchClass Ours>
TorchOptions torch_options_of(const Ours& o) {
  auto options = std::make_unique<typename TorchClass<Ours>::Options>(o.lr);
  TorchClass<Ours>::each_option(o, *options, [](const auto& ours, auto& theirs) { theirs = ours; });
  return options;
}
TorchOptions torch_options_of(const TorchOptimizer& o) {
  const auto made = o.make({at::zeros({1}).requires_grad_(true)});
  if (!made) throw ConfigError(o.label + ": make returned no optimizer");
  const auto& groups = made->param_groups();
  if (groups.empty() || !groups.front().has_options()) return std::make_unique<RateOptions>(o.lr);
  return groups.front().options().clone();
}
template <class Other>
TorchOptions torch_options_of(const Other& o) {
  return std::make_unique<RateOptions>(o.lr);
}

template <class Ours>
void follow_options(Ours&, const optim::OptimizerOptions&) {}
template <HasTorchClass Ours>
void follow_options(Ours& o, const optim::OptimizerOptions& said) {
  const auto& options = static_cast<const typename TorchClass<Ours>::Options&>(said);
  TorchClass<Ours>::each_option(o, options, [](auto& ours, const auto& theirs) { ours = theirs; });
}

const char* value_with_state(const Sgd& before, const Sgd& now) {
  return (before.momentum != 0) != (now.momentum != 0) ? "momentum" : "";
}
const char* value_with_state(const AdaGrad& before, const AdaGrad& now) {
  return before.initial_accumulator_value != now.initial_accumulator_value ? "initial_accumulator_value" : "";
}
const char* value_with_state(const RmsProp& before, const RmsProp& now) {
  if ((before.momentum != 0) != (now.momentum != 0)) return "momentum";
  return before.centered != now.centered ? "centered" : "";
}
template <class Other>
const char* value_with_state(const Other& before, const Other& now) {
  if constexpr (requires { before.amsgrad; }) return before.amsgrad != now.amsgrad ? "amsgrad" : "";
  return "";
}

}  // namespace

TorchOptions torch_options(const Optimizer& optimizer) {
  return std::visit([](const auto& value) { return torch_options_of(value); }, optimizer);
}

Optimizer followed(const Optimizer& optimizer, const optim::OptimizerOptions& options) {
  Optimizer now = optimizer;
  std::visit([&](auto& value) { follow_options(value, options); }, now);
  return now;
}

std::string other_state(const Optimizer& before, const Optimizer& now) {
  return std::visit(
      [&](const auto& value) -> const char* {
        return value_with_state(value, std::get<std::remove_cvref_t<decltype(value)>>(now));
      },
      before);
}

namespace {

// Sees what the optimizer allocates and frees where the weights are, while it lives.
class Seen final : public MemoryObserver {
 public:
  Seen(c10::Device where, std::unordered_map<void*, std::int64_t>& sizes) : sizes_(sizes), before_(memory_observer()) {
    if (where.is_cpu())
      observe_memory(this);
    else
      there_.emplace(where, *this);
  }
  ~Seen() override {
    if (!there_) observe_memory(before_);
  }
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;

  void allocated(void* data, std::size_t bytes) override { sizes_[data] = static_cast<std::int64_t>(bytes); }
  void freed(void* data) override { sizes_.erase(data); }

 private:
  std::unordered_map<void*, std::int64_t>& sizes_;
  MemoryObserver* before_;
  std::optional<DeviceReports> there_;
};

void set_lr(torch::optim::Optimizer& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
}

void set_options(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options) {
  for (auto& group : optimizer.param_groups()) {
    const torch::optim::OptimizerOptions& made = group.options();
    if (typeid(made) == typeid(options)) group.set_options(options.clone());
  }
}

at::Tensor leaf(const at::Tensor& values) {
  return values.detach().clone().requires_grad_(true);
}

constexpr std::int64_t kTried = 128;
constexpr double kTrialRate = 0.1;

// How far three steps move the weights, updated in tensors of `shape`.
at::Tensor tried(const TorchOptimizer& optimizer, const std::vector<std::int64_t>& shape) {
  const std::int64_t part = c10::multiply_integers(shape);
  std::vector<at::Tensor> moves;
  for (std::int64_t begin = 0; begin < kTried; begin += part) {
    const at::Tensor index = at::arange(begin, begin + part, at::kFloat).view(shape);
    at::Tensor weights = leaf(index.div(kTried));
    const auto made = optimizer.make({weights});
    if (!made) throw ConfigError(optimizer.label + ": make returned no optimizer");
    set_lr(*made, kTrialRate);
    for (int step = 1; step <= 3; ++step) {
      weights.mutable_grad() = index.mul(step).sin().add(0.1 * step);
      made->step();
    }
    moves.push_back(weights.detach().sub(index.div(kTried)).flatten());
  }
  return at::cat(moves);
}

}  // namespace

void require_elementwise(const TorchOptimizer& optimizer) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError("optimizer " + optimizer.label + " cannot run on parts of parameters: " + why,
                      "use one that goes element by element, or one of the engine's");
  };
  at::Tensor whole, parts, matrix;
  try {
    whole = tried(optimizer, {kTried});
    parts = tried(optimizer, {kTried / 4});
    matrix = tried(optimizer, {8, kTried / 8});
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    refuse("a step without a closure failed (" + text.substr(0, text.find('\n')) + ")");
  }
  if (!at::allclose(whole, parts, 1e-4, 1e-5))
    refuse("a tensor updated in four parts is not what it is when updated whole (norms over tensors, perhaps)");
  if (!at::allclose(whole, matrix, 1e-4, 1e-5)) refuse("it treats matrices and vectors differently");
}

TorchStep::TorchStep(const TorchOptimizer& optimizer, Accounts& accounts, int unit)
    : optimizer_(optimizer), accounts_(accounts), account_(Owner::optimizer, unit) {}

TorchStep::~TorchStep() {
  accounts_.adopt(this, {});
  accounts_.add(account_, -booked_);
}

void TorchStep::run(const UpdateFactors& factors, const UpdateRange& range,
                    const torch::optim::OptimizerOptions* options) {
  const at::ScalarType wide = scalar_type(accumulation(range.dtype));
  const auto view = [&](const void* data, at::ScalarType dtype) {
    return tensor_at(accounts_.where(), data, dtype, range.count);
  };
  count_ = range.count;
  {
    const Seen seen(accounts_.where(), kept_);
    if (!made_) {
      weights_ = view(range.main, wide).requires_grad_(true);
      made_ = optimizer_.make({weights_});
    }
    weights_.set_data(view(range.main, wide));
    weights_.mutable_grad() = view(range.gradient, scalar_type(range.gradient_dtype())).to(wide).mul(factors.scale);
    if (options != nullptr) set_options(*made_, *options);
    set_lr(*made_, factors.lr);
    made_->step();
    weights_.mutable_grad() = at::Tensor();
  }
  book();
  if (range.parameter != nullptr) view(range.parameter, scalar_type(range.dtype)).copy_(view(range.main, wide));
}

TorchFields TorchStep::fields() const {
  return made_ ? fields_of(*made_, weights_, count_, optimizer_.label) : TorchFields();
}

void TorchStep::resume(const TorchFields& fields, std::int64_t count, Dtype wide) {
  count_ = count;
  const at::TensorOptions options = at::TensorOptions().dtype(scalar_type(wide)).device(accounts_.where());
  {
    const Seen seen(accounts_.where(), kept_);
    weights_ = at::zeros({count}, options).requires_grad_(true);
    made_ = begun(optimizer_, weights_);
    set_fields(*made_, weights_, fields);
    weights_.set_data(at::empty({0}, options));
  }
  book();
}

void TorchStep::book() {
  std::int64_t bytes = 0;
  std::vector<const void*> memory;
  for (const auto& [data, size] : kept_) {
    memory.push_back(data);
    bytes += size;
  }
  accounts_.adopt(this, std::move(memory));
  accounts_.add(account_, bytes - booked_);
  booked_ = bytes;
}

}  // namespace zero

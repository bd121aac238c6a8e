#include "update/torch_steps.h"

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>

#include <optional>
#include <typeinfo>

#include "device/torch/dtypes.h"
#include "device/torch/torch_device.h"
#include "memory/torch/arena_allocator.h"
#include "memory/torch/device_reports.h"
#include "zero/error.h"

namespace zero {
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

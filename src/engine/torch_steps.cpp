#include "engine/torch_steps.h"

#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>

#include <optional>
#include <unordered_map>

#include "comm/dtypes.h"
#include "tier/arena_allocator.h"
#include "zero/error.h"

namespace zero {
namespace {

// What comes and stays while it lives, in bytes.
class Net final : public MemoryObserver {
 public:
  Net() : before_(memory_observer()) { observe_memory(this); }
  ~Net() override { observe_memory(before_); }
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  void allocated(void* data, std::size_t bytes) override { sizes_[data] = static_cast<std::int64_t>(bytes); }
  void freed(void* data) override { sizes_.erase(data); }
  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [data, bytes] : sizes_) sum += bytes;
    return sum;
  }

 private:
  MemoryObserver* before_;
  std::unordered_map<void*, std::int64_t> sizes_;
};

void set_lr(torch::optim::Optimizer& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
}

at::Tensor leaf(const at::Tensor& values) {
  return values.detach().clone().requires_grad_(true);
}

constexpr std::int64_t kTried = 128, kPart = 32;

// The weights after three steps, updated in stretches of `part`.
at::Tensor tried(const TorchOptimizer& optimizer, std::int64_t part) {
  const at::Tensor start = at::linspace(-1, 2, kTried);
  std::vector<at::Tensor> stretches;
  for (std::int64_t begin = 0; begin < kTried; begin += part) {
    at::Tensor weights = leaf(start.slice(0, begin, begin + part));
    const auto made = optimizer.make({weights});
    if (!made) throw ConfigError(optimizer.label + ": make returned no optimizer");
    set_lr(*made, optimizer.lr);
    for (int step = 1; step <= 3; ++step) {
      weights.mutable_grad() = at::arange(begin, begin + part, at::kFloat).mul(step).sin().add(0.1 * step);
      made->step();
    }
    stretches.push_back(weights.detach());
  }
  return at::cat(stretches);
}

}  // namespace

void require_elementwise(const TorchOptimizer& optimizer) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError("optimizer " + optimizer.label + " cannot run on parts of parameters: " + why,
                      "use one that goes element by element, or one of the engine's");
  };
  std::optional<at::Tensor> whole, parts;
  try {
    whole = tried(optimizer, kTried);
    parts = tried(optimizer, kPart);
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    refuse("a step without a closure failed (" + text.substr(0, text.find('\n')) + ")");
  }
  if (!at::allclose(*whole, *parts, 1e-5, 1e-7))
    refuse(
        "a tensor updated in four parts is not what it is when updated "
        "whole (norms over tensors, perhaps)");
}

TorchStep::TorchStep(const TorchOptimizer& optimizer, Accounts& accounts)
    : optimizer_(optimizer), accounts_(accounts) {}

TorchStep::~TorchStep() {
  accounts_.add(Owner::optimizer, -kept_);
}

void TorchStep::run(const UpdateFactors& factors, const UpdateRange& range) {
  const at::ScalarType wide = scalar_type(accumulation(range.dtype));
  const auto view = [&](const void* data, at::ScalarType dtype) {
    return at::from_blob(const_cast<void*>(data), {range.count}, at::TensorOptions().dtype(dtype));
  };
  if (!made_) {
    weights_ = view(range.main, wide).requires_grad_(true);
    made_ = optimizer_.make({weights_});
  }
  weights_.set_data(view(range.main, wide));
  weights_.mutable_grad() = view(range.gradient, wide).mul(factors.scale);
  set_lr(*made_, factors.lr);
  const Net net;
  made_->step();
  accounts_.add(Owner::optimizer, net.bytes());
  kept_ += net.bytes();
  weights_.mutable_grad() = at::Tensor();
  if (range.parameter != nullptr) view(range.parameter, scalar_type(range.dtype)).copy_(view(range.main, wide));
}

}  // namespace zero

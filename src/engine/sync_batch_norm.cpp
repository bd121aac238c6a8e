#include "zero/sync_batch_norm.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <string>
#include <utility>
#include <vector>

#include "state/batch_norm.h"
#include "state/dispatch_hook.h"
#include "zero/error.h"

namespace zero {
namespace {

struct Layer {
  const torch::nn::Module& module;
  at::Tensor known_by;  // as operators are given it
};

template <class Norm>
void add_if(const torch::nn::Module& module, const std::string& name, std::vector<Layer>& layers) {
  const auto* const norm = module.as<Norm>();
  if (norm == nullptr) return;
  const at::Tensor& tensor = norm->weight.defined() ? norm->weight : norm->running_mean;
  if (!tensor.defined())
    throw ConfigError("batch normalisation '" + name + "' has neither a weight nor running statistics to know it by",
                      "give it one of them");
  layers.push_back({module, tensor});
}

void add_layers(const torch::nn::Module& module, const std::string& name, std::vector<Layer>& layers) {
  add_if<torch::nn::BatchNorm1d>(module, name, layers);
  add_if<torch::nn::BatchNorm2d>(module, name, layers);
  add_if<torch::nn::BatchNorm3d>(module, name, layers);
  for (const auto& child : module.named_children())
    add_layers(*child.value(), name.empty() ? child.key() : name + "." + child.key(), layers);
}

std::vector<Layer> layers_of(const torch::nn::Module& module) {
  std::vector<Layer> layers;
  add_layers(module, {}, layers);
  if (layers.empty()) throw ConfigError("sync_batch_norm: the module has no BatchNorm1d, BatchNorm2d or BatchNorm3d");
  return layers;
}

}  // namespace

class SyncBatchNorm::Impl {
 public:
  Impl(const torch::nn::Module& module, const World& world) : layers_(layers_of(module)) {
    const Communicator ranks = world.size() == 1 ? world.communicator() : world.communicator().split(0, world.rank());
    for (const Layer& layer : layers_) batch_norm::add(layer.known_by, layer.module, ranks);
    dispatch_hook::watch();
  }
  ~Impl() {
    dispatch_hook::unwatch();
    for (const Layer& layer : layers_) batch_norm::remove(layer.known_by);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

 private:
  std::vector<Layer> layers_;  // whose tensors are kept, so that no others take their places
};

SyncBatchNorm::SyncBatchNorm(const torch::nn::Module& module, const World& world)
    : impl_(std::make_unique<Impl>(module, world)) {}
SyncBatchNorm::~SyncBatchNorm() = default;
SyncBatchNorm::SyncBatchNorm(SyncBatchNorm&&) noexcept = default;

}  // namespace zero

#include "zero/sync_batch_norm.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <list>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "operators/batch_norm.h"
#include "operators/dispatch.h"
#include "zero/error.h"

namespace zero {
namespace {

// Each with what it is known by: the tensor, as operators are given it.
using Layers = std::vector<std::pair<const torch::nn::Module*, at::Tensor>>;

template <class Norm>
void add_if(const torch::nn::Module& module, const std::string& name, Layers& layers) {
  const auto* const norm = module.as<Norm>();
  if (norm == nullptr) return;
  const at::Tensor& tensor = norm->weight.defined() ? norm->weight : norm->running_mean;
  if (!tensor.defined())
    throw ConfigError("batch normalisation '" + name + "' has neither a weight nor running statistics to know it by",
                      "give it one of them");
  layers.emplace_back(&module, tensor);
}

void add_layers(const torch::nn::Module& module, const std::string& name, Layers& layers) {
  add_if<torch::nn::BatchNorm1d>(module, name, layers);
  add_if<torch::nn::BatchNorm2d>(module, name, layers);
  add_if<torch::nn::BatchNorm3d>(module, name, layers);
  for (const auto& child : module.named_children()) add_layers(*child.value(), path_of(name, child.key()), layers);
}

Layers layers_of(const torch::nn::Module& module) {
  Layers layers;
  add_layers(module, {}, layers);
  if (layers.empty()) throw ConfigError("sync_batch_norm: the module has no BatchNorm1d, BatchNorm2d or BatchNorm3d");
  return layers;
}

}  // namespace

class SyncBatchNorm::Impl {
 public:
  Impl(const torch::nn::Module& module, const World& world) : layers_(layers_of(module)) {
    const Communicator ranks = world.size() == 1 ? world.communicator() : world.communicator().split(0, world.rank());
    for (const auto& [layer, known_by] : layers_) added_.emplace_back(known_by, *layer, ranks);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

 private:
  Layers layers_;  // whose tensors are kept, so that no others take their places
  std::list<batch_norm::Added> added_;
  Watch watch_;
};

SyncBatchNorm::SyncBatchNorm(const torch::nn::Module& module, const World& world)
    : impl_(std::make_unique<Impl>(module, world)) {}
SyncBatchNorm::~SyncBatchNorm() = default;
SyncBatchNorm::SyncBatchNorm(SyncBatchNorm&&) noexcept = default;
SyncBatchNorm& SyncBatchNorm::operator=(SyncBatchNorm&&) noexcept = default;

}  // namespace zero

#include "zero/tiled_linear.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "zero/error.h"

namespace zero {
namespace {

// Vectors of outputs, so that whole ones are in one tile: sums over rows, as a bias has them for its gradient, then
// have the plain layer's bits.
constexpr std::int64_t kGranules[] = {64, 16};

std::vector<std::int64_t> borders_of(std::int64_t rows, std::int64_t tiles) {
  if (tiles < 1 || tiles > rows)
    throw ConfigError(
        "a linear layer of " + std::to_string(rows) + " outputs cannot be in " + std::to_string(tiles) + " tiles",
        "from one to as many as it has outputs");
  std::int64_t granule = 1;
  for (const std::int64_t each : kGranules)
    if (granule == 1 && (rows + each - 1) / each >= tiles) granule = each;
  const std::int64_t granules = (rows + granule - 1) / granule;
  std::vector<std::int64_t> borders;
  for (std::int64_t k = 0; k <= tiles; ++k) borders.push_back(std::min(granules * k / tiles * granule, rows));
  return borders;
}

void take_over(at::Tensor& part, const at::Tensor& whole, std::int64_t begin, std::int64_t end) {
  part.set_data(whole.detach().narrow(0, begin, end - begin).clone(at::MemoryFormat::Contiguous));
  part.set_requires_grad(whole.requires_grad());
}

}  // namespace

struct TiledLinearImpl::Tile : torch::nn::Cloneable<Tile> {
  Tile(std::int64_t columns, std::int64_t rows, bool with_bias)
      : in_features(columns), out_features(rows), has_bias(with_bias) {
    Tile::reset();
  }
  void reset() override {
    weight = register_parameter("weight", at::empty({out_features, in_features}));
    bias = register_parameter("bias", has_bias ? at::empty({out_features}) : at::Tensor(), has_bias);
  }

  std::int64_t in_features, out_features;
  bool has_bias;
  at::Tensor weight, bias;
};

TiledLinearImpl::TiledLinearImpl(const torch::nn::LinearOptions& layer, std::int64_t tiles)
    : options(layer), borders_(borders_of(layer.out_features(), tiles)) {
  TiledLinearImpl::reset();
}

void TiledLinearImpl::reset() {
  tiles_.clear();
  for (std::size_t k = 0; k + 1 < borders_.size(); ++k)
    tiles_.push_back(
        register_module(std::to_string(k),
                        std::make_shared<Tile>(options.in_features(), borders_[k + 1] - borders_[k], options.bias())));
  reset_parameters();
}

// In a torch::nn::Linear's order, each number that it draws.
void TiledLinearImpl::reset_parameters() {
  for (const auto& tile : tiles_) torch::nn::init::kaiming_uniform_(tile->weight, std::sqrt(5));
  if (!options.bias() || options.in_features() == 0) return;
  const double bound = 1 / std::sqrt(static_cast<double>(options.in_features()));
  for (const auto& tile : tiles_) torch::nn::init::uniform_(tile->bias, -bound, bound);
}

void TiledLinearImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "zero::TiledLinear(in_features=" << options.in_features()
         << ", out_features=" << options.out_features() << ", bias=" << options.bias() << ", tiles=" << tiles_.size()
         << ")";
}

at::Tensor TiledLinearImpl::joined(at::Tensor Tile::*part) const {
  std::vector<at::Tensor> parts;
  for (const auto& tile : tiles_) parts.push_back((*tile.*part).detach());
  return at::cat(parts);
}

void TiledLinearImpl::save(torch::serialize::OutputArchive& archive) const {
  archive.write("weight", joined(&Tile::weight));
  if (options.bias()) archive.write("bias", joined(&Tile::bias));
}

void TiledLinearImpl::load(torch::serialize::InputArchive& archive) {
  at::Tensor weight, bias;
  archive.read("weight", weight);
  if (options.bias()) archive.read("bias", bias);
  const at::NoGradGuard no_grad;
  for (std::size_t k = 0; k < tiles_.size(); ++k) {
    const std::int64_t begin = borders_[k], rows = borders_[k + 1] - begin;
    tiles_[k]->weight.copy_(weight.narrow(0, begin, rows));
    if (options.bias()) tiles_[k]->bias.copy_(bias.narrow(0, begin, rows));
  }
}

void TiledLinearImpl::set(const at::Tensor& weight, const at::Tensor& bias) {
  const bool fits = weight.sizes() == at::IntArrayRef({options.out_features(), options.in_features()}) &&
                    bias.defined() == options.bias();
  if (!fits) throw ConfigError("a tiled linear layer was given a weight of other sizes, or a bias that it has not");
  const at::NoGradGuard no_grad;
  for (std::size_t k = 0; k < tiles_.size(); ++k) {
    take_over(tiles_[k]->weight, weight, borders_[k], borders_[k + 1]);
    if (bias.defined()) take_over(tiles_[k]->bias, bias, borders_[k], borders_[k + 1]);
  }
}

at::Tensor TiledLinearImpl::forward(const at::Tensor& input) {
  std::vector<at::Tensor> outputs;
  for (const auto& tile : tiles_) outputs.push_back(torch::nn::functional::linear(input, tile->weight, tile->bias));
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs, -1);
}

TiledLinear tiled_linear(const torch::nn::Linear& layer, std::int64_t tiles) {
  TiledLinear tiled(layer->options, tiles);
  tiled->set(layer->weight, layer->bias);
  return tiled;
}

namespace {

class Tiling {
 public:
  explicit Tiling(std::int64_t elements) : elements_(elements) {}

  void visit(torch::nn::Module& module, const std::string& path) {
    auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
    for (const auto& child : module.named_children()) {
      const std::string below = path_of(path, child.key());
      const auto linear = std::dynamic_pointer_cast<torch::nn::LinearImpl>(child.value());
      if (!linear) {
        visit(*child.value(), below);
      } else if (const std::int64_t tiles = tiles_of(*linear); tiles > 1) {
        if (sequential != nullptr) replace(*sequential, child.key(), torch::nn::Linear(linear), tiles);
        (sequential != nullptr ? layers_.tiled : layers_.left).push_back(below);
      }
    }
  }
  TiledLayers result() && { return std::move(layers_); }

 private:
  std::int64_t tiles_of(const torch::nn::LinearImpl& linear) const {
    const std::int64_t rows = linear.options.out_features(), inputs = linear.options.in_features();
    if (rows * inputs <= elements_) return 1;
    for (std::int64_t tiles = (rows * inputs + elements_ - 1) / elements_; tiles < rows; ++tiles) {
      const std::vector<std::int64_t> borders = borders_of(rows, tiles);
      std::int64_t most = 0;
      for (std::size_t k = 0; k + 1 < borders.size(); ++k) most = std::max(most, borders[k + 1] - borders[k]);
      if (most * inputs <= elements_) return tiles;
    }
    return rows;
  }

  static void replace(torch::nn::SequentialImpl& sequential, const std::string& name, const torch::nn::Linear& linear,
                      std::int64_t tiles) {
    const TiledLinear tiled = tiled_linear(linear, tiles);
    for (torch::nn::AnyModule& each : sequential)
      if (each.ptr().get() == linear.get()) each = torch::nn::AnyModule(tiled);
    sequential.replace_module(name, tiled);
  }

  std::int64_t elements_;
  TiledLayers layers_;
};

}  // namespace

TiledLayers tile_linears(torch::nn::Module& module, std::int64_t elements) {
  if (elements < 1) throw ConfigError("tiles of " + std::to_string(elements) + " elements", "give 1 or more");
  Tiling tiling(elements);
  tiling.visit(module, "");
  return std::move(tiling).result();
}

}  // namespace zero

// A linear layer in tiles over its outputs, for weights that are too large to be gathered at once.
//
//   zero::TiledLinear up(torch::nn::LinearOptions(4096, 65536), 16);  // instead of torch::nn::Linear
//   zero::TiledLinear down = zero::tiled_linear(linear, 4);           // or with the values of one that is there
//
// Each tile is a unit of the engine's: its rows of weight and bias are gathered, computed with and released before the
// next tile's are needed, so that sharded parameters need the memory of two tiles instead of that of the layer.
//
// To whoever saves or loads it, it is the plain layer: it has the state of a torch::nn::Linear in torch::save() and
// torch::load(), in safetensors files and in checkpoints. There a model that has it takes what one without it wrote,
// and the other way round. Of an optimizer's state the following is a tile's own, under its name "layer.0.weight": what
// is in 8 bits, Adafactor's means of columns, and histories of FP8. Optimizers over whole tensors see the tiles.
//
// Outputs have the bits of the plain layer wherever the product adds up an element in the same order, whatever the
// number of its columns; docs/tiers.md says where that was so. The gradient of the input is a sum over tiles, which
// rounds otherwise than one product. Under every plan and on any number of ranks the bits are the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace zero {

class TiledLinearImpl : public torch::nn::Cloneable<TiledLinearImpl> {
 public:
  // Values are those that a torch::nn::Linear would draw. Throws ConfigError for fewer tiles than one, or more than
  // outputs.
  TiledLinearImpl(const torch::nn::LinearOptions& layer, std::int64_t tiles);
  TiledLinearImpl(std::int64_t in_features, std::int64_t out_features, std::int64_t tiles)
      : TiledLinearImpl(torch::nn::LinearOptions(in_features, out_features), tiles) {}

  // Tiles anew, with values as the constructor's.
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  // The plain layer's weight and bias, whole. Of a module that an engine has, load() is called inside zero::gather. It
  // throws c10::Error where they are missing.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // From [..., in_features] to [..., out_features], in the dtype of torch::nn::functional::linear().
  at::Tensor forward(const at::Tensor& input);

  // Tile k, which is the child named so, has rows [borders()[k], borders()[k + 1]).
  const std::vector<std::int64_t>& borders() const { return borders_; }
  // Takes them over, and their dtype, device and whether they are trained: [out_features, in_features], and
  // [out_features] where the layer has a bias, else undefined. Throws ConfigError for others.
  void set(const at::Tensor& weight, const at::Tensor& bias);

  torch::nn::LinearOptions options;

 private:
  struct Tile;
  at::Tensor joined(at::Tensor Tile::*part) const;

  std::vector<std::int64_t> borders_;
  std::vector<std::shared_ptr<Tile>> tiles_;
};
TORCH_MODULE(TiledLinear);

// With the layer's values. A weight that other modules share is theirs alone from then on. Throws as the constructor.
TiledLinear tiled_linear(const torch::nn::Linear& layer, std::int64_t tiles);

// Names of modules, as in named_modules().
struct TiledLayers {
  std::vector<std::string> tiled;
  std::vector<std::string> left;  // members of other modules than Sequential
};
// Puts tiles in the place of each torch::nn::Linear in `module` whose weight has more than `elements`, as few as have
// no more each, where the model need not know: where a Sequential calls it. A member that is declared a
// torch::nn::Linear can be nothing else, since its forward() is not virtual: declare it a TiledLinear. Throws
// ConfigError for less than one element. Before an engine has the module; not collective, the same on every rank.
TiledLayers tile_linears(torch::nn::Module& module, std::int64_t elements);

}  // namespace zero

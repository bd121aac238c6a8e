#include "engine/module_tiles.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "zero/tiled_linear.h"

namespace zero {
namespace {

// `path` is empty, or ends with a dot.
void add(const torch::nn::Module& module, const std::string& path, Tiles& tiles) {
  if (const auto* const layer = dynamic_cast<const TiledLinearImpl*>(&module)) {
    const std::vector<std::int64_t>& borders = layer->borders();
    for (std::size_t k = 0; k + 1 < borders.size(); ++k)
      for (const std::string name : {"weight", "bias"})
        tiles[path + std::to_string(k) + "." + name] = {path + name, borders[k], borders[k + 1] - borders[k],
                                                        borders.back()};
  }
  for (const auto& child : module.named_children()) add(*child.value(), path + child.key() + ".", tiles);
}

}  // namespace

Tiles tiles_of(const torch::nn::Module& module) {
  Tiles tiles;
  add(module, "", tiles);
  return tiles;
}

}  // namespace zero

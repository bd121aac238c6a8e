// Which parameters of a module are rows of what would be one.
#pragma once

#include "partition/tiles.h"

namespace torch::nn {
class Module;
}

namespace zero {

// Of every TiledLinear in it.
Tiles tiles_of(const torch::nn::Module& module);

}  // namespace zero

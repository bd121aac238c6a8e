// What modules of all kinds show of themselves: LibTorch's, those that are described, and TorchScript's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zero/described_module.h"

namespace zero {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Null for a module of LibTorch's own.
const ModuleTraits* traits_of(const torch::nn::Module& module);

// The class's name; of TorchScript's without where it was defined.
std::string type_name(const torch::nn::Module& module);
std::string type_name(const torch::jit::Module& module);
bool is_container(const torch::nn::Module& module);
bool is_container(const torch::jit::Module& module);
bool is_embedding(const torch::nn::Module& module);
bool is_embedding(const torch::jit::Module& module);
bool is_tiled(const torch::nn::Module& module);
bool is_tiled(const torch::jit::Module& module);
template <class AnyModule>
bool is_norm(const AnyModule& module) {
  return type_name(module).find("Norm") != std::string::npos;
}

// The module's own, without those of its children.
Named parameters_of(const torch::nn::Module& module);
Named parameters_of(const torch::jit::Module& module);
Named buffers_of(const torch::nn::Module& module);
Named buffers_of(const torch::jit::Module& module);
// Whether the buffer belongs to what is saved of the module. LibTorch's own modules and TorchScript's know no other.
bool is_persistent(const torch::nn::Module& module, const std::string& buffer);
bool is_persistent(const torch::jit::Module& module, const std::string& buffer);

std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> children_of(const torch::nn::Module& module);
std::vector<std::pair<std::string, std::shared_ptr<torch::jit::Module>>> children_of(const torch::jit::Module& module);

}  // namespace zero

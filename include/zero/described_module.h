// A module of another kind than LibTorch's of C++, a Python program's for example, told to an engine as what it is:
//
//   auto net = std::make_shared<zero::DescribedModule>(zero::ModuleTraits{.type = "Net"});
//   net->register_parameter("weight", weight);  // the very tensor that the program computes with
//   net->register_module("layers", layers);     // a described one, or one of LibTorch's
//   zero::Engine engine(*net, world, plan, optimizer);
//
// It has no forward: the program runs its own, and the engine meets the parameters there.
#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <utility>

namespace zero {

// What engines ask of a module beside its parameters, buffers and children.
struct ModuleTraits {
  std::string type;        // its class, without where that is: "LlamaRMSNorm"; one with "Norm" in it is a norm
  bool container = false;  // a list, dictionary or sequence of modules, as ModuleList: its children are units
  bool embedding = false;  // its parameters are tables of rows that are looked up
  // Of an embedding: the largest norm of the rows of "weight", as its lookups ask for it.
  std::optional<double> max_norm = {};
  double norm_type = 2;
};

class DescribedModule final : public torch::nn::Module {
 public:
  explicit DescribedModule(ModuleTraits traits) : Module(traits.type), traits_(std::move(traits)) {}
  const ModuleTraits& traits() const { return traits_; }

 private:
  ModuleTraits traits_;
};

}  // namespace zero

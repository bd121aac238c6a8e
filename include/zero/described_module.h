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

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

class DescribedModule;

// The module that a description was made of. An engine looks at it again as it trains: buffers may be assigned anew,
// and layers replaced. Called on the engine's thread.
class DescribedSource {
 public:
  virtual ~DescribedSource() = default;
  // As it is now; null where it has ended.
  virtual std::shared_ptr<DescribedModule> describe() const = 0;
  // Adds the parameters that are registered now, in one order; false where it has ended. Asked at every step.
  virtual bool parameters(std::vector<at::Tensor>& all) const = 0;
};

class DescribedModule final : public torch::nn::Module {
 public:
  explicit DescribedModule(ModuleTraits traits) : Module(traits.type), traits_(std::move(traits)) {}
  const ModuleTraits& traits() const { return traits_; }

  using Module::register_buffer;
  // One that is not persistent is the program's: it is in no checkpoint, and no load changes it.
  at::Tensor& register_buffer(std::string name, at::Tensor tensor, bool persistent) {
    if (!persistent) not_persistent_.insert(name);
    return register_buffer(std::move(name), std::move(tensor));
  }
  bool persistent(const std::string& buffer) const { return !not_persistent_.contains(buffer); }

  // Of the whole description's root. Without, an engine looks at the description itself, as long as it is there.
  void made_of(std::shared_ptr<const DescribedSource> source) { source_ = std::move(source); }
  const std::shared_ptr<const DescribedSource>& source() const { return source_; }

 private:
  ModuleTraits traits_;
  std::set<std::string> not_persistent_;
  std::shared_ptr<const DescribedSource> source_;
};

}  // namespace zero

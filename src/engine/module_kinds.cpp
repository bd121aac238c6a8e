#include "engine/module_kinds.h"

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>

#include "zero/tiled_linear.h"

namespace zero {

using torch::nn::Module;
using Scripted = torch::jit::Module;

const ModuleTraits* traits_of(const Module& module) {
  const auto* described = dynamic_cast<const DescribedModule*>(&module);
  return described == nullptr ? nullptr : &described->traits();
}

std::string type_name(const Module& module) {
  return module.name();
}
bool is_container(const Module& module) {
  if (const ModuleTraits* traits = traits_of(module)) return traits->container;
  return dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module) != nullptr;
}
bool is_embedding(const Module& module) {
  if (const ModuleTraits* traits = traits_of(module)) return traits->embedding;
  return dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module) != nullptr;
}
bool is_tiled(const Module& module) {
  return dynamic_cast<const TiledLinearImpl*>(&module) != nullptr;
}

std::string type_name(const Scripted& module) {
  const auto name = module.type()->name();
  return name ? name->name() : std::string();
}
bool is_container(const Scripted& module) {
  const std::string name = type_name(module);
  return name == "Sequential" || name == "ModuleList" || name == "ModuleDict";
}
bool is_embedding(const Scripted& module) {
  return type_name(module).starts_with("Embedding");
}
bool is_tiled(const Scripted& /*module*/) {
  return false;
}

Named parameters_of(const Module& module) {
  return module.named_parameters(/*recurse=*/false).pairs();
}
Named buffers_of(const Module& module) {
  return module.named_buffers(/*recurse=*/false).pairs();
}
bool is_persistent(const Module& module, const std::string& buffer) {
  const auto* described = dynamic_cast<const DescribedModule*>(&module);
  return described == nullptr || described->persistent(buffer);
}

namespace {

template <class List>
Named pairs_of(const List& list) {
  Named pairs;
  for (const auto& item : list) pairs.emplace_back(item.name, item.value);
  return pairs;
}

}  // namespace

Named parameters_of(const Scripted& module) {
  return pairs_of(module.named_parameters(/*recurse=*/false));
}
Named buffers_of(const Scripted& module) {
  return pairs_of(module.named_buffers(/*recurse=*/false));
}
bool is_persistent(const Scripted& /*module*/, const std::string& /*buffer*/) {
  return true;
}

std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_of(const Module& module) {
  return module.named_children().pairs();
}
std::vector<std::pair<std::string, std::shared_ptr<Scripted>>> children_of(const Scripted& module) {
  std::vector<std::pair<std::string, std::shared_ptr<Scripted>>> children;
  for (const auto& child : module.named_children())
    children.emplace_back(child.name, std::make_shared<Scripted>(child.value));
  return children;
}

}  // namespace zero

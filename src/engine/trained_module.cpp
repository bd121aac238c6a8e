#include "engine/trained_module.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "base/text.h"
#include "engine/module_kinds.h"

namespace zero {
namespace {

using torch::nn::Module;
using Scripted = torch::jit::Module;
using Tensors = std::vector<at::Tensor>;

template <class AnyModule>
void add_parameters(const AnyModule& module, Tensors& all) {
  for (auto& [name, parameter] : parameters_of(module))
    if (parameter.defined()) all.push_back(std::move(parameter));
  for (const auto& [name, child] : children_of(module)) add_parameters(*child, all);
}

// Without children.
template <class AnyModule>
void add_own(const AnyModule& module, const std::string& path, std::vector<Registered>& all) {
  const auto info = [&](const std::string& name, const at::Tensor& tensor) {
    return ParameterInfo{path_of(path, name), tensor.sizes().vec(), is_embedding(module), is_norm(module)};
  };
  for (const auto& [name, parameter] : parameters_of(module))
    if (parameter.defined()) all.push_back({info(name, parameter), parameter});
  for (const auto& [name, buffer] : buffers_of(module))
    if (buffer.defined()) all.push_back({info(name, buffer), buffer, /*buffer=*/true, is_persistent(module, name)});
}

template <class AnyModule>
void add_registered(const AnyModule& module, const std::string& path, std::vector<Registered>& all) {
  add_own(module, path, all);
  for (const auto& [name, child] : children_of(module)) add_registered(*child, path_of(path, name), all);
}

// What a root that nobody shares has by itself stays as it was.
class LibTorchs final : public ModuleView {
 public:
  explicit LibTorchs(const Module& module) : root_(module.weak_from_this()) {
    add_own(module, "", own_);
    for (const auto& [name, child] : children_of(module)) children_.emplace_back(name, child);
  }

  bool parameters(Tensors& all) const override {
    if (const auto root = root_.lock()) {
      add_parameters(*root, all);
      return true;
    }
    for (const Registered& each : own_)
      if (!each.buffer) all.push_back(each.tensor);
    return each_child([&](const std::string&, const Module& child) { add_parameters(child, all); });
  }

  bool registered(std::vector<Registered>& all) const override {
    if (const auto root = root_.lock()) {
      add_registered(*root, "", all);
      return true;
    }
    all.insert(all.end(), own_.begin(), own_.end());
    return each_child([&](const std::string& name, const Module& child) { add_registered(child, name, all); });
  }

 private:
  template <class Use>
  bool each_child(const Use& use) const {
    for (const auto& [name, child] : children_) {
      const auto there = child.lock();
      if (!there) return false;
      use(name, *there);
    }
    return true;
  }

  std::weak_ptr<const Module> root_;
  std::vector<Registered> own_;
  std::vector<std::pair<std::string, std::weak_ptr<const Module>>> children_;
};

class Scripts final : public ModuleView {
 public:
  explicit Scripts(const Scripted& module) : module_(module) {}

  bool parameters(Tensors& all) const override {
    add_parameters(module_, all);
    return true;
  }
  bool registered(std::vector<Registered>& all) const override {
    add_registered(module_, "", all);
    return true;
  }

 private:
  Scripted module_;  // a handle
};

class Described final : public ModuleView {
 public:
  explicit Described(std::shared_ptr<const DescribedSource> source) : source_(std::move(source)) {}

  bool parameters(Tensors& all) const override { return source_->parameters(all); }
  bool registered(std::vector<Registered>& all) const override {
    const std::shared_ptr<const Module> now = source_->describe();
    if (now) add_registered(*now, "", all);
    return now != nullptr;
  }

 private:
  std::shared_ptr<const DescribedSource> source_;
};

// Of a type that is trained, or refused as one that cannot be.
bool is_trainable(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || tensor.is_complex();
}

bool same(const Tensors& one, const Tensors& other) {
  return std::ranges::equal(one, other, [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
}

}  // namespace

void add_replicated(std::vector<Replicated>& all, Replicated added) {
  const auto found = std::ranges::find_if(all, [&](const auto& each) { return each.tensor.is_same(added.tensor); });
  if (found == all.end()) {
    all.push_back(std::move(added));
  } else if (added.persistent && !found->persistent) {
    *found = std::move(added);
  }
}

void add_registered(const Module& module, std::vector<Registered>& all) {
  add_registered(module, "", all);
}

std::shared_ptr<const ModuleView> view_of(const Module& module) {
  const auto* const described = dynamic_cast<const DescribedModule*>(&module);
  if (described != nullptr && described->source()) return std::make_shared<Described>(described->source());
  return std::make_shared<LibTorchs>(module);
}

std::shared_ptr<const ModuleView> view_of(const Scripted& module) {
  return std::make_shared<Scripts>(module);
}

TrainedModule::TrainedModule(std::shared_ptr<const ModuleView> view,
                             std::vector<std::pair<std::string, at::Tensor>> trained,
                             std::function<bool(const ParameterInfo&)> ignored)
    : view_(std::move(view)), trained_(std::move(trained)), ignored_(std::move(ignored)) {
  static_cast<void>(view_->parameters(known_));
}

std::vector<std::string> TrainedModule::changes() {
  std::vector<Registered> all;
  now_.clear();
  if (!view_->parameters(now_) || same(now_, known_) || !view_->registered(all)) return {};
  std::erase_if(all, [](const Registered& each) { return each.buffer; });
  std::map<std::string, at::Tensor> there;
  std::unordered_set<const void*> present, trained;
  for (const Registered& each : all) {
    there.emplace(each.info.name, each.tensor);
    present.insert(each.tensor.unsafeGetTensorImpl());
  }
  std::vector<std::string> changes;
  std::set<std::string> names;
  for (const auto& [name, tensor] : trained_) {
    names.insert(name);
    trained.insert(tensor.unsafeGetTensorImpl());
    const auto found = there.find(name);
    if (found != there.end() && !found->second.is_same(tensor)) {
      changes.push_back("parameter '" + name + "' of the model is no longer the one that the engine trains: an " +
                        "assignment, another layer or load_state_dict(assign=True) replaced it");
    } else if (!present.contains(tensor.unsafeGetTensorImpl())) {
      changes.push_back("parameter '" + name + "', which the engine trains, is no longer in the model");
    }
  }
  for (const auto& [info, tensor, buffer, persistent] : all)
    if (is_trainable(tensor) && !trained.contains(tensor.unsafeGetTensorImpl()) && names.insert(info.name).second &&
        !ignores(info))
      changes.push_back("parameter '" + info.name + "' was put into the model after the engine was built, which does " +
                        "not train it");
  if (changes.empty()) known_ = now_;
  return changes;
}

std::vector<Replicated> TrainedModule::replicated(std::vector<Replicated> before) const {
  std::vector<Registered> all;
  if (!view_->registered(all)) return before;
  std::vector<Replicated> now;
  std::unordered_set<const void*> others;  // parameters of a type that is trained
  for (const auto& [info, tensor, buffer, persistent] : all) {
    if (!buffer && (is_trainable(tensor) || ignores(info))) {
      others.insert(tensor.unsafeGetTensorImpl());
    } else if (!others.contains(tensor.unsafeGetTensorImpl())) {
      add_replicated(now, {info.name, tensor, persistent});
    }
  }
  return now;
}

}  // namespace zero

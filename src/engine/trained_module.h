// The module that an engine trains, as it is at the time of asking: its program may assign buffers anew, and replace
// layers and parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zero/optimizer.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace zero {

// A buffer, or a parameter of an integer type: every rank has all of it.
struct Replicated {
  std::string name;
  at::Tensor tensor;
  bool persistent = true;  // false: the program's, in no state
};
// Adds it, unless its tensor is there; one that is persistent under any name is so under the first such.
void add_replicated(std::vector<Replicated>& all, Replicated added);

// A parameter or buffer, under each of its names.
struct Registered {
  ParameterInfo info;
  at::Tensor tensor;
  bool buffer = false;
  bool persistent = true;
};

// All of a module, module by module, the parameters of each first.
void add_registered(const torch::nn::Module& module, std::vector<Registered>& all);

// A module of any kind, which may have ended.
class ModuleView {
 public:
  virtual ~ModuleView() = default;
  // Adds the parameters under all of their names, in one order; false where the module, or a part of it, has ended.
  virtual bool parameters(std::vector<at::Tensor>& all) const = 0;
  // Adds all that is registered, as add_registered() does; false likewise.
  virtual bool registered(std::vector<Registered>& all) const = 0;
};
// They do not keep the module; of one that nobody shares, a local variable, they see the children alone.
std::shared_ptr<const ModuleView> view_of(const torch::nn::Module& module);
std::shared_ptr<const ModuleView> view_of(const torch::jit::Module& module);

// On the engine's thread.
class TrainedModule {
 public:
  // `trained`: by name, the parameters that are the engine's. `ignored`: those that are not, or empty.
  TrainedModule(std::shared_ptr<const ModuleView> view, std::vector<std::pair<std::string, at::Tensor>> trained,
                std::function<bool(const ParameterInfo&)> ignored);

  // What has become of the parameters since, one sentence each; empty where the module has ended. Cheap where nothing
  // has.
  std::vector<std::string> changes();
  // What is replicated now; `before` where the module has ended.
  std::vector<Replicated> replicated(std::vector<Replicated> before) const;

 private:
  bool ignores(const ParameterInfo& info) const { return ignored_ && ignored_(info); }

  std::shared_ptr<const ModuleView> view_;
  std::vector<std::pair<std::string, at::Tensor>> trained_;
  std::function<bool(const ParameterInfo&)> ignored_;
  std::vector<at::Tensor> known_, now_;  // under all names: as they were found right, and as they are
};

}  // namespace zero

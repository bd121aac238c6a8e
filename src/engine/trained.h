// What an engine trains, and how: what its program gave it, and what follows from that alone.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/module_inventory.h"
#include "engine/trained_module.h"
#include "partition/routes.h"
#include "partition/tiles.h"
#include "zero/engine.h"
#include "zero/layout.h"
#include "zero/mesh.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace zero {

// It stays as it is, but for what the program sets of its optimizers' values, and looks at what it does to the module.
class Trained {
 public:
  // Of a plan that is valid. Throws ConfigError for options that do not go with it.
  Trained(const Inventory& inventory, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer, Options options);
  Trained(const Trained&) = delete;
  Trained& operator=(const Trained&) = delete;

  const Plan& plan() const { return plan_; }          // as given
  const Plan& resolved() const { return resolved_; }  // on the mesh
  const Routes& routes() const { return routes_; }    // of this rank, on the mesh
  const Options& options() const { return options_; }
  const Optimizer& optimizer() const { return optimizer_; }  // of parameters in no group
  const Layout& layout() const { return layout_; }
  const Tiles& tiles() const { return tiles_; }
  // By parameter of the layout.
  const std::vector<ParameterInfo>& infos() const { return infos_; }
  const std::vector<ParameterRule>& rules() const { return rules_; }
  std::size_t parameters() const { return infos_.size(); }
  // Of the same state; from the next update on.
  void set_optimizer(int parameter, const Optimizer& optimizer) {
    rules_[static_cast<std::size_t>(parameter)].optimizer = optimizer;
  }
  // Along which dimension a parameter is cut over the tensor axis.
  const std::optional<TensorCut>& cut(int parameter) const { return cuts_[static_cast<std::size_t>(parameter)]; }
  // By unit: see partition/staying.h.
  const std::vector<char>& staying() const { return staying_; }

  // What ranks compare: see same_on_ranks.h.
  std::vector<std::string> description(const Inventory& inventory) const;
  // Of Options::groups, that which takes the parameter; -1: none.
  int group_of(int parameter) const;

  // Throws StateError where the program has replaced, added or taken away parameters.
  void require_module();
  // The buffers that the module has now; `before` where it has ended.
  std::vector<Replicated> replicated(std::vector<Replicated> before) const {
    return module_.replicated(std::move(before));
  }

 private:
  Plan plan_, resolved_;
  Routes routes_;
  Options options_;
  Optimizer optimizer_;
  std::vector<ParameterInfo> infos_;
  std::vector<std::optional<TensorCut>> cuts_;
  std::vector<ParameterRule> rules_;
  TrainedModule module_;
  Tiles tiles_;
  Layout layout_;
  std::vector<char> staying_;
};

}  // namespace zero

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "zero/layout.h"

namespace zero {

// How much the flat gradients of a plan take that are there at once, where each is collected as its gradients arrive.
// One follows the other in the memory of the largest; but that of a module with several parameters of its own may wait
// for the last of them while those of the modules inside come and go, and those of one module's units come together.
class FlatGradients {
 public:
  // So many units like this one.
  void add(const UnitLayout& unit, std::int64_t times, std::int64_t bytes) {
    Module& module = modules_[unit.name().substr(0, unit.name().find('#'))];
    module.least = module.all == 0 ? bytes : std::min(module.least, bytes);
    module.all += bytes;
    if (unit.slots().size() > 1) module.waiting += bytes;
    largest_ = std::max(largest_, bytes);
    units_ += times;
  }

  // One after the other, each once it is complete.
  std::int64_t largest() const { return largest_; }
  // Beside that one, where so many are on their way at once: each in memory as large. One that waits for those inside
  // may have such memory, and another one, on its way, memory of its own.
  std::int64_t beside(std::int64_t under_way) const {
    const std::int64_t others = std::min(under_way, units_) - 1;
    return others <= 0 ? 0 : (others + (any_waits() ? 1 : 0)) * largest_;
  }

  std::int64_t most() const {
    std::int64_t beside = 0;
    for (const auto& [name, module] : modules_) beside = std::max(beside, beside_largest(name, module));
    return largest_ + beside;
  }

 private:
  struct Module {
    std::int64_t all = 0, least = 0;  // bytes of its units
    std::int64_t waiting = 0;         // of those with several parameters
  };

  // Those around one that wait for it, from the inside.
  template <class Action>
  void each_waiting(std::string_view name, const Action& action) const {
    while (!name.empty()) {
      name = name.substr(0, name.find('.') == std::string_view::npos ? 0 : name.rfind('.'));
      const auto around = modules_.find(name);
      if (around != modules_.end() && around->second.waiting > 0) action(around->second);
    }
  }

  // While all of a module's are there: one, the first to come, has the memory of the largest.
  std::int64_t beside_largest(std::string_view name, const Module& module) const {
    std::int64_t all = module.all, first = module.least;
    each_waiting(name, [&](const Module& around) {
      all += around.waiting;
      first = around.least;
    });
    return all - first;
  }

  bool any_waits() const {
    bool waits = false;
    for (const auto& [name, module] : modules_) each_waiting(name, [&](const Module&) { waits = true; });
    return waits;
  }

  std::int64_t largest_ = 0, units_ = 0;
  std::map<std::string, Module, std::less<>> modules_;
};

}  // namespace zero

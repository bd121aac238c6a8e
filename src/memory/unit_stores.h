// The stores of a state of which a share stays on the device: each unit has one of two. No torch.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "memory/store.h"

namespace zero {

class UnitStores {
 public:
  // `here`: of the units that are `staying`, by unit; null where none is.
  UnitStores(std::unique_ptr<Store> below, std::unique_ptr<Store> here, std::vector<char> staying)
      : below_(std::move(below)), here_(std::move(here)), staying_(std::move(staying)) {}

  Store& of(int unit) const { return stays(unit) ? *here_ : *below_; }
  bool stays(int unit) const { return here_ != nullptr && staying_[static_cast<std::size_t>(unit)] != 0; }
  // Of those that do not stay: of the tier that the plan says.
  Store& below() const { return *below_; }
  Store* here() const { return here_.get(); }

 private:
  std::unique_ptr<Store> below_, here_;
  std::vector<char> staying_;
};

}  // namespace zero

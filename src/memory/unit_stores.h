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
  // `resident`: of the units that are `staying`, by unit; null where none is.
  UnitStores(std::unique_ptr<Store> offloaded, std::unique_ptr<Store> resident, std::vector<char> staying)
      : offloaded_(std::move(offloaded)), resident_(std::move(resident)), staying_(std::move(staying)) {}

  Store& of(int unit) const { return stays(unit) ? *resident_ : *offloaded_; }
  bool stays(int unit) const { return resident_ != nullptr && staying_[static_cast<std::size_t>(unit)] != 0; }
  // Of those that do not stay: of the tier that the plan says.
  Store& offloaded() const { return *offloaded_; }
  Store* resident() const { return resident_.get(); }

 private:
  std::unique_ptr<Store> offloaded_, resident_;
  std::vector<char> staying_;
};

}  // namespace zero

// Where a store failed.
#pragma once

#include <string>

#include "memory/block.h"
#include "units/unit.h"

namespace zero {

// Calls; a store's failure says then on which rank, with what, and of which unit it was.
template <class Call>
void for_unit(const Unit& unit, const char* what, const Call& call) {
  try {
    call();
  } catch (const StoreError& error) {
    throw StoreError("rank " + std::to_string(unit.rank()) + ": " + what + " of unit '" + unit.layout().name() +
                     "': " + error.what());
  }
}

}  // namespace zero

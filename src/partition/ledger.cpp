#include "zero/ledger.h"

namespace zero {

std::string_view name(Owner owner) {
  switch (owner) {
    case Owner::parameter: return "parameter";
    case Owner::gradient: return "gradient";
    case Owner::optimizer: return "optimizer";
    case Owner::gathered: return "gathered";
    case Owner::reduction: return "reduction";
    case Owner::update: return "update";
    case Owner::activation: return "activation";
    case Owner::snapshot: return "snapshot";
  }
  return "?";
}

Owner owner_of(State state) {
  switch (state) {
    case State::parameter: return Owner::parameter;
    case State::gradient: return Owner::gradient;
    case State::optimizer: return Owner::optimizer;
    case State::activation: break;
  }
  return Owner::activation;
}

}  // namespace zero

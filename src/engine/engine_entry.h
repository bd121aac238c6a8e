// The one door for calls of the program's: what they need of the engine is seen to in one order, and an Error that
// leaves says on which rank it was.
#pragma once

#include <ATen/core/grad_mode.h>

#include <optional>

#include "backwards/unwatched.h"
#include "engine/accumulation.h"
#include "engine/engine_ranks.h"
#include "engine/parameters.h"
#include "engine/step.h"
#include "engine/trained.h"
#include "memory/tier_meter.h"

namespace zero {

// Where one is not so StateError says so.
struct Needs {
  bool alive = true;           // nothing has failed halfway, and it has not been released
  bool module = false;         // has the parameters that the engine was built with
  bool idle = false;           // no backward of the engine is under way
  bool unchanged = false;      // parameters are where the engine has put them
  bool no_scope = false;       // none of them is gathered by a scope
  bool between_steps = false;  // idle, and no gradients are held, but such as zero_grad() has emptied. Collective
  bool latest = false;         // parameters are those of the latest step, with largest norms. Collective
  bool unwatched = false;      // operators of the call are no forward's, and record nothing
  bool apart = false;          // what it moves between tiers is no step's
};

class Entry {
 public:
  Entry(Trained& trained, EngineRanks& ranks, const Liveness& life, Parameters& parameters, Accumulation& accumulation,
        Step& step)
      : trained_(trained),
        ranks_(ranks),
        life_(life),
        parameters_(parameters),
        accumulation_(accumulation),
        step_(step) {}

  // `call` as the program knows it.
  void require(const char* call, const Needs& needs) const;

  template <class Work>
  decltype(auto) operator()(const char* call, const Needs& needs, const Work& work) const {
    return naming_rank(ranks_.rank_of_all(), [&]() -> decltype(auto) {
      require(call, needs);
      std::optional<Unwatched> unwatched;
      std::optional<at::NoGradGuard> no_grad;
      std::optional<TierMeter::SetupTraffic> apart;
      if (needs.unwatched) unwatched.emplace(), no_grad.emplace();
      if (needs.apart) apart.emplace();
      return work();
    });
  }

 private:
  Trained& trained_;
  EngineRanks& ranks_;
  const Liveness& life_;
  Parameters& parameters_;
  Accumulation& accumulation_;
  Step& step_;
};

}  // namespace zero

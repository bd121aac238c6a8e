// What memory an engine needs, by its plan and by others.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine_ranks.h"
#include "engine/parameters.h"
#include "engine/trained.h"
#include "zero/estimate.h"

namespace zero {

class MemoryNeeds {
 public:
  MemoryNeeds(const Trained& trained, const EngineRanks& ranks, const Parameters& parameters)
      : trained_(trained), ranks_(ranks), parameters_(parameters) {}

  // Whether sharded parameters live once for all ranks.
  Memory memory() const;
  // By the trace of the latest micro-batch, else Trace::sequential.
  Estimate estimate() const;
  // What is said when the device has no memory left; `then`: what else is to be done.
  OutOfMemoryError exhausted(const std::string& what, const char* during, const char* then) const;

 private:
  Estimate estimate(const Plan& plan, const Topologies& topologies) const;
  std::int64_t needs(const Plan& plan) const;
  std::string plan_that_fits(std::int64_t room) const;

  const Trained& trained_;
  const EngineRanks& ranks_;
  const Parameters& parameters_;
};

}  // namespace zero

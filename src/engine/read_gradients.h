// What is read of gradients between the last backward of a step and step(): by the vote, for norms, and by the program.
#pragma once

#include <functional>
#include <vector>

#include "engine/accumulation.h"
#include "engine/engine_ranks.h"
#include "engine/parameters.h"
#include "engine/trained.h"
#include "engine/vote.h"

namespace zero {

class GradientReader {
 public:
  GradientReader(const Trained& trained, EngineRanks& ranks, Parameters& parameters, Accumulation& accumulation)
      : trained_(trained),
        ranks_(ranks),
        parameters_(parameters),
        accumulation_(accumulation),
        gradients_(accumulation.gradients()) {}

  // Throws StateError for a parameter that is multiplied with by other operators than those computed in FP8.
  void require_float8() const;
  // This rank's sums, and which parameters have a gradient.
  void add_to(StepSummary& summary);
  // By group of Options::groups, the last being those of no group; nothing where they were not asked for. Collective.
  std::vector<double> group_norms();
  // Throws StateError for `call` where the program cannot read them.
  void require_gradients(const char* call);
  // See Engine; where they can be read. What `use` throws leaves as it is.
  at::Tensor gradient(const at::Tensor& parameter);
  void for_each_slice(const std::function<void(const GradientSlice&)>& use);

 private:
  void each_slice(Unit& unit, const std::function<void(const Slot&, GradientSlice)>& use) const;
  std::vector<std::int64_t> squares_of_groups();
  bool counted_here(const Slot& slot) const;

  const Trained& trained_;
  EngineRanks& ranks_;
  Parameters& parameters_;
  Accumulation& accumulation_;
  Gradients& gradients_;
};

}  // namespace zero

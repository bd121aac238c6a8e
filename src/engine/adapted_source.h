// State of another precision or optimizer, as an engine would have it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "partition/state_tensors.h"
#include "zero/checkpoint.h"
#include "zero/state.h"

namespace zero {

// Of a module.
struct ExpectedBuffers {
  std::vector<StateTensor> tensors;
  std::set<std::string> of_program;  // names of those that are not persistent
};

// What is the engine's already is passed on as it is. Of what is not, values are converted: from main weights, or from
// parameters with what rounding cut off them; buffers likewise. An optimizer's state is passed on where it is as
// expected; else it is left out where the options say that it may begin, and stays, for fit_state() to tell of, where
// they do not. Moments that have numbers for names, of checkpoints that do not say whose they are, are taken for the
// engine's of these numbers. Buffers that are the program's are left out.
//
// One thread; uses constant memory beside the source's.
class AdaptedSource final : public StateSource {
 public:
  // `seed`: the engine's own, of which one that takes weights only begins. The source stays.
  AdaptedSource(StateSource& source, const std::vector<ExpectedParameter>& parameters, const ExpectedBuffers& buffers,
                const LoadOptions& options, std::uint64_t seed);

  const StateScalars& scalars() const override { return scalars_; }
  const std::vector<StateTensor>& tensors() const override { return tensors_; }
  void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) override;

 private:
  // Where a tensor comes from: `main` alone, and as it is, or converted.
  struct Origin {
    std::size_t main = 0;
    std::optional<std::size_t> rest = {};  // what is to be added to it
    bool converted = false;
  };

  void name_moments(const std::vector<ExpectedParameter>& parameters);
  void begin();
  void add(const ExpectedParameter& parameter);
  void add_values(const ExpectedParameter& parameter);
  bool add_optimizer(const ExpectedParameter& parameter);
  void add_buffer(const StateTensor& wanted);
  void pass(std::size_t tensor);
  bool has(const StateTensor& expected) const;
  std::vector<std::size_t> given(const std::string& name) const;
  std::vector<double> wide(const Origin& origin, std::int64_t begin, std::int64_t end);

  StateSource& source_;
  const LoadOptions& options_;
  StateScalars scalars_;
  std::vector<StateTensor> given_;         // the source's
  std::map<StateKey, std::size_t> index_;  // of these
  std::vector<StateTensor> tensors_;
  std::vector<Origin> origins_;
};

}  // namespace zero

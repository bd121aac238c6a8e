// A run's figures, step by step, for TensorBoard.
#pragma once

#include <string>

#include "cli/report/tensorboard.h"
#include "cli/training/train.h"

namespace cli {

// Writes each step to an event file in `folder` and passes it on to `next`.
class Scalars : public Listener {
 public:
  Scalars(const std::string& folder, Listener& next) : file_(folder), next_(next) {}

  void begin(const zero::Engine& engine, const RunResult& predicted) override { next_.begin(engine, predicted); }
  void step(const Progression& now) override;
  void evaluated(const Evaluation& evaluation) override;
  void resumed(const std::string& checkpoint, const RunResult& result) override;
  void saved(const std::string& checkpoint) override { next_.saved(checkpoint); }
  void not_saved(const std::string& fault) override { next_.not_saved(fault); }

 private:
  void write(const std::string& tag, std::int64_t step, double value);

  EventFile file_;
  Listener& next_;
  std::int64_t steps_ = 0;
};

}  // namespace cli

#include "cli/training/scalars.h"

#include <chrono>

namespace cli {

void Scalars::write(const std::string& tag, std::int64_t step, double value) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  file_.scalar(tag, step, value, std::chrono::duration<double>(now).count());
}

void Scalars::step(const Progression& now) {
  const zero::StepReport& report = now.report;
  const std::int64_t step = ++steps_;
  write("loss", step, report.loss);
  write("grad_norm", step, report.grad_norm);
  write("learning_rate", step, report.lr);
  write("loss_scale", step, report.loss_scale);
  write("step_seconds", step, now.seconds);
  write("tokens_per_second", step, now.tokens_per_second);
  const bool measured = now.ledger[zero::Owner::activation].peak > 0;
  for (int i = 0; i < zero::kOwners; ++i) {
    const auto owner = static_cast<zero::Owner>(i);
    if (owner == zero::Owner::activation && !measured) continue;
    write("bytes/" + std::string(name(owner)), step, static_cast<double>(now.ledger[owner].peak));
  }
  if (measured) write("bytes/peak", step, static_cast<double>(now.ledger.peak_total));
  next_.step(now);
}

void Scalars::resumed(const std::string& checkpoint, const RunResult& result) {
  steps_ = static_cast<std::int64_t>(result.losses.size());
  next_.resumed(checkpoint, result);
}

void Scalars::evaluated(const Evaluation& evaluation) {
  write("evaluation/loss", evaluation.step, evaluation.loss);
  next_.evaluated(evaluation);
}

}  // namespace cli

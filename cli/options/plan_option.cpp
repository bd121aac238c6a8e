#include "cli/options/plan_option.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "cli/options/validators.h"
#include "planner/plan_file.h"

namespace cli {
namespace {

class Taking {
 public:
  Taking(const CLI::App& command, std::string file) : command_(command), file_(std::move(file)) {}

  template <class T, class V>
  void take(const char* option, T& into, const V& value) const {
    if (command_.count(option) > 0 && into != static_cast<T>(value))
      throw UsageError(std::string(option) + " " + text(into) + " contradicts the plan file " + zero::shown(file_) +
                       ", which says " + text(value));
    into = static_cast<T>(value);
  }

  bool missing(const char* option) const { return command_.count(option) == 0; }

 private:
  const CLI::App& command_;
  std::string file_;
};

void take(const planner::PlanFile& file, const Taking& taking, RunOptions& options) {
  options.plans = {file.plan};
  taking.take("--precision", options.precision, file.precision);
  taking.take("--accumulate", options.accumulate, file.accumulate);
  taking.take("--resident-budget", options.resident_budget, file.resident_budget);
  taking.take("--reduce-in", options.reduce_in, file.reduce_in);
  taking.take("--gather-in", options.gather_in, file.gather_in);
  taking.take("--offload", options.offload, file.offload);
  taking.take("--optimizer", options.optimizer, file.optimizer);
  taking.take("--ranks", options.ranks, file.ranks);
  taking.take("--shard-ranks", options.shard_ranks, file.shard_ranks);
  if (file.model.empty() && taking.missing("--model"))
    throw UsageError(
        "--plan: the plan file names no model, since it was made from a number of parameters: give --model");
  if (!file.model.empty()) taking.take("--model", options.model, file.model);
  taking.take("--batch", options.batch, file.batch);
  taking.take("--seq", options.seq, file.seq);
  options.reproducible = options.reproducible || file.reproducible;
  options.delay_update = options.delay_update || file.delay_update;
}

}  // namespace

void take_plan_file(const CLI::App& command, RunOptions& options) {
  const std::string name = options.plans.front();
  const auto presets = zero::Plan::presets();
  if (std::ranges::find(presets, name) != presets.end()) return;
  std::error_code error;
  if (!std::filesystem::exists(name, error))
    throw UsageError("--plan: " + zero::in_quotes(name) + " is neither a preset (" + zero::joined(presets) +
                     ") nor a file" +
                     zero::did_you_mean(name, std::vector<std::string>(presets.begin(), presets.end())));
  options.plan_file = name;
  take(planner::read_plan_file(name), Taking(command, name), options);
}

}  // namespace cli

#include "cli/training/saving.h"

#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/training/collect.h"

namespace cli {
namespace {

// What ranks ask of all.
constexpr std::uint32_t kStop = 1, kSave = 2;

constexpr std::array kSignals{SIGTERM, SIGUSR1};
volatile std::sig_atomic_t signal_heard = 0;
std::array<struct sigaction, kSignals.size()> actions_before;

// The curves, as tensors of a checkpoint.
constexpr const char* kLosses = "zero train losses";
constexpr const char* kNorms = "zero train gradient norms";
constexpr const char* kEvaluations = "zero train evaluations";  // rows of step and loss

zero::UserTensor vector_of(const char* name, const std::vector<double>& values, std::int64_t columns = 1) {
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(values.size()) / columns};
  if (columns > 1) shape.push_back(columns);
  return {name, zero::Dtype::f64, std::move(shape), values.data()};
}

std::vector<double> values_of(const zero::Restored& restored, const char* name) {
  for (const zero::RestoredTensor& each : restored.tensors) {
    if (each.name != name || each.dtype != zero::Dtype::f64) continue;
    std::vector<double> values(each.values.size() / sizeof(double));
    if (!values.empty()) std::memcpy(values.data(), each.values.data(), each.values.size());
    return values;
  }
  throw zero::CheckpointError(restored.folder + " was not saved by zero train: it has no " + zero::in_quotes(name));
}

std::vector<double> rows_of(const std::vector<Evaluation>& evaluations) {
  std::vector<double> rows;
  for (const Evaluation& each : evaluations) rows.insert(rows.end(), {static_cast<double>(each.step), each.loss});
  return rows;
}

}  // namespace

StopSignals::StopSignals(bool noted) : noted_(noted) {
  if (!noted_) return;
  signal_heard = 0;
  struct sigaction note {};
  note.sa_handler = [](int number) { signal_heard = number; };
  note.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &note, &actions_before[i]);
}

StopSignals::~StopSignals() {
  if (!noted_) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &actions_before[i], nullptr);
}

int StopSignals::heard() {
  return signal_heard;
}

Saving::Saving(const zero::World& world, const RunOptions& options, const Work& work, Listener& listener)
    : world_(world), options_(options), work_(work), listener_(listener), signals_(active()) {
  if (!options.saving.every.empty()) interval_ = save_interval(options.saving.every);
  if (active()) zero::prepare_checkpoints(world, options.saving.folder);
}

std::string Saving::resume(zero::Engine& engine, RunResult& result) {
  if (!active()) return {};
  const Resume from = resume_of(options_.saving);
  if (!from.newest && !from.step) return {};
  const std::string& folder = options_.saving.folder;
  const auto there = static_cast<std::int64_t>(zero::checkpoint_steps(folder).size());
  if (from.newest && gather<std::int64_t>(world_, {there}).front() == 0) return {};
  const zero::Restored restored =
      engine.load(folder, {.step = from.step, .allow_new_optimizer = options_.saving.new_optimizer});
  result.losses = values_of(restored, kLosses);
  result.grad_norms = values_of(restored, kNorms);
  const std::vector<double> rows = values_of(restored, kEvaluations);
  for (std::size_t i = 0; i + 1 < rows.size(); i += 2)
    result.evaluations.push_back({static_cast<std::int64_t>(rows[i]), rows[i + 1]});
  saved_steps_ = result.losses.size();
  return restored.folder;
}

void Saving::before_step(zero::Engine& engine) {
  if (!active()) return;
  const std::chrono::duration<double> since = Clock::now() - saved_at_;
  if (StopSignals::heard() != 0) engine.request(kStop);
  if (world_.rank() == 0 && interval_.seconds > 0 && since.count() >= interval_.seconds) engine.request(kSave);
}

bool Saving::due(const RunResult& result, std::uint32_t requests) const {
  const auto steps = static_cast<std::int64_t>(result.losses.size());
  return (interval_.steps > 0 && steps % interval_.steps == 0) || (requests & kSave) != 0;
}

bool Saving::after_step(zero::Engine& engine, const RunResult& result, const zero::StepReport& report) {
  if (!active()) return false;
  hear(report.saved, report.save_fault);
  const bool stops = (report.requests & kStop) != 0;
  const bool goes_on = !stops && static_cast<std::int64_t>(result.losses.size()) < options_.steps;
  if (goes_on && due(result, report.requests)) save(engine, result, /*behind=*/true);
  return stops;
}

bool Saving::finish(zero::Engine& engine, const RunResult& result) {
  if (!active()) return true;
  if (result.losses.size() != saved_steps_) save(engine, result, /*behind=*/false);
  std::string saved, fault;
  try {
    saved = engine.finish_save();
  } catch (const zero::CheckpointError& error) {
    fault = error.what();
  }
  hear(saved, fault);
  return !unsaved_;
}

void Saving::save(zero::Engine& engine, const RunResult& result, bool behind) {
  saved_at_ = Clock::now();
  saved_steps_ = result.losses.size();
  const std::vector<double> evaluations = rows_of(result.evaluations);
  zero::SaveOptions how{.keep_last = options_.saving.keep,
                        .keep_every = options_.saving.keep_every,
                        .replace = true,
                        .background = behind};
  nlohmann::ordered_json user{{"program", "zero train"},
                              {"model", nlohmann::ordered_json::parse(models::config_json(work_.config))},
                              {"steps_tried", result.losses.size()}};
  how.user = user.dump();
  if (world_.rank() == 0)
    how.tensors = {vector_of(kLosses, result.losses), vector_of(kNorms, result.grad_norms),
                   vector_of(kEvaluations, evaluations, 2)};
  try {
    const std::string folder = engine.save(options_.saving.folder, how);
    if (!behind) hear(folder, "");
  } catch (const zero::CheckpointError& error) {
    hear("", error.what());
  }
}

void Saving::hear(const std::string& saved, const std::string& fault) {
  if (!saved.empty()) listener_.saved(saved);
  if (!saved.empty() || !fault.empty()) unsaved_ = saved.empty();
  if (fault.empty()) return;
  if (!options_.saving.goes_on) throw zero::CheckpointError(fault, "--go-on-unsaved trains on without");
  listener_.not_saved(fault);
}

}  // namespace cli

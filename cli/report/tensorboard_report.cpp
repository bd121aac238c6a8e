#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/report/tensorboard.h"
#include "zero/error.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

// Null where a member is missing on the way.
const Json& at(const Json& json, std::initializer_list<const char*> path) {
  static const Json missing;
  const Json* found = &json;
  for (const char* key : path) {
    if (!found->is_object() || !found->contains(key)) return missing;
    found = &found->at(key);
  }
  return *found;
}

// Steps of a run, each at the time at which it ended.
class RunEvents {
 public:
  RunEvents(const std::string& folder, const Json& run, double begin)
      : run_(run), begin_(begin), file_(folder, begin), last_(static_cast<std::int64_t>(at(run, {"losses"}).size())) {
    const Json seconds = at(run, {"step_seconds"});
    if (seconds.is_number()) seconds_ = seconds;
  }

  void each_step(const char* tag, const char* key) {
    std::int64_t step = 0;
    for (const Json& value : at(run_, {key})) write(tag, ++step, value);
  }
  void evaluations() {
    for (const Json& each : at(run_, {"evaluations"})) write("evaluation/loss", each.at("step"), at(each, {"loss"}));
  }
  void at_end(const std::string& tag, std::initializer_list<const char*> path) { write(tag, last_, at(run_, path)); }

 private:
  void write(const std::string& tag, std::int64_t step, const Json& value) {
    if (value.is_number()) file_.scalar(tag, step, value, begin_ + static_cast<double>(step) * seconds_);
  }

  const Json& run_;
  double begin_;
  EventFile file_;
  std::int64_t last_;
  double seconds_ = 0;
};

void write_run(const std::string& folder, const Json& run, double wall_time) {
  RunEvents events(folder, run, wall_time);
  events.each_step("loss", "losses");
  events.each_step("grad_norm", "grad_norms");
  events.each_step("learning_rate", "learning_rates");
  events.evaluations();
  events.at_end("step_seconds", {"step_seconds"});
  events.at_end("tokens_per_second", {"tokens_per_second"});
  for (const char* owner : {"parameter", "gradient", "optimizer"})
    events.at_end(std::string("bytes/") + owner, {"state_bytes", owner, "measured"});
  events.at_end("bytes/activation", {"activation_bytes", "measured"});
  events.at_end("bytes/buffer", {"buffer_bytes", "measured"});
  events.at_end("bytes/peak", {"peak", "measured"});
  events.at_end("bytes/wire", {"wire_bytes_per_step", "measured"});
}

// The plan; with what else a run has where plans repeat. No folder below the folder.
std::string run_name(const Json& runs, const Json& run) {
  const auto same = [&](const Json& other) { return at(other, {"plan"}) == at(run, {"plan"}); };
  std::string name = run.value("plan", "run");
  if (std::count_if(runs.begin(), runs.end(), same) > 1)
    name += "-" + run.value("optimizer", "") + "-" + run.value("precision", "");
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

}  // namespace

void write_events(const std::string& folder, const std::string& json, double wall_time) {
  try {
    const Json report = Json::parse(json);
    const Json& runs = report.at("runs");
    for (const Json& run : runs) write_run(folder + "/" + run_name(runs, run), run, wall_time);
  } catch (const Json::exception& error) {
    throw zero::Error("the report cannot be written to '" + folder + "' as events: " + error.what());
  }
}

}  // namespace cli

#include "cli/report/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "zero/error.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

double microseconds(const Json& seconds) {
  return seconds.get<double>() * 1e6;
}

// The events of one run.
class Process {
 public:
  Process(Json& events, int id) : events_(events), id_(id) {}

  void name(const std::string& name) {
    metadata("process_name", 0, {{"name", name}});
    metadata("process_sort_index", 0, {{"sort_index", id_}});
  }
  void span(const std::string& name, const std::string& thread, const Json& times, const Json& arguments) {
    const double begin = microseconds(times.at("begin"));
    Json event{{"ph", "X"}, {"name", name}, {"pid", id_}, {"tid", row(thread)}};
    event["ts"] = begin;
    event["dur"] = microseconds(times.at("end")) - begin;
    if (!arguments.empty()) event["args"] = arguments;
    events_.push_back(std::move(event));
  }
  void count(const std::string& name, double at, const Json& values) {
    events_.push_back({{"ph", "C"}, {"name", name}, {"pid", id_}, {"tid", 0}, {"ts", at}, {"args", values}});
  }

 private:
  void metadata(const char* what, int thread, const Json& arguments) {
    events_.push_back({{"ph", "M"}, {"name", what}, {"pid", id_}, {"tid", thread}, {"args", arguments}});
  }
  // Rows are numbered from 1 as their threads appear, and stand in that order.
  int row(const std::string& thread) {
    const auto at = std::find(threads_.begin(), threads_.end(), thread);
    const int number = static_cast<int>(at - threads_.begin()) + 1;
    if (at != threads_.end()) return number;
    threads_.push_back(thread);
    metadata("thread_name", number, {{"name", thread}});
    metadata("thread_sort_index", number, {{"sort_index", number}});
    return number;
  }

  Json& events_;
  int id_;
  std::vector<std::string> threads_;
};

// Of the owners that hold anything at all.
void add_bytes(Process& process, const Json& owners, const Json& samples) {
  std::vector<std::size_t> used;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const auto holds = [i](const Json& sample) { return sample.at(i + 1) != 0; };
    if (std::any_of(samples.begin(), samples.end(), holds)) used.push_back(i);
  }
  for (const Json& sample : samples) {
    Json values = Json::object();
    for (const std::size_t i : used) values[owners[i].get<std::string>()] = sample.at(i + 1);
    process.count("bytes", microseconds(sample.at(0)), values);
  }
}

void add_activity(Process& process, const Json& activity) {
  const std::string unit = activity.value("unit", "");
  const Json arguments = unit.empty() ? Json::object() : Json{{"unit", unit}};
  process.span(activity.at("name"), activity.at("thread"), activity, arguments);
}

std::string name_of(const Json& run, int rank) {
  std::string name;
  for (const char* key : {"plan", "optimizer", "precision"}) {
    const std::string value = run.value(key, "");
    if (!value.empty()) name += (name.empty() ? "" : ", ") + value;
  }
  return name + ", rank " + std::to_string(rank);
}

void add_run(Json& events, int id, const Json& run) {
  const Json& timeline = run.at("timeline");
  Process process(events, id);
  process.name(name_of(run, timeline.value("rank", 0)));
  for (const Json& phase : timeline.value("phases", Json::array()))
    process.span(phase.at("phase"), "phases", phase, Json::object());
  for (const Json& activity : timeline.value("activities", Json::array())) add_activity(process, activity);
  add_bytes(process, timeline.at("owners"), timeline.at("samples"));
}

Json trace_events(const Json& report) {
  Json events = Json::array();
  int id = 0;
  for (const Json& run : report.at("runs")) {
    ++id;
    if (run.contains("timeline") && !run["timeline"].is_null()) add_run(events, id, run);
  }
  return events;
}

}  // namespace

std::string chrome_trace(const std::string& json) {
  try {
    const Json events = trace_events(Json::parse(json));
    if (events.empty()) throw zero::Error("no run of the report has a timeline to make a trace of");
    return Json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump() + "\n";
  } catch (const Json::exception& error) {
    throw zero::Error(std::string("the report cannot be made a trace: ") + error.what());
  }
}

}  // namespace cli

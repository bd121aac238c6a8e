#include "cli/report/report.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <set>

#include "cli/report/format.h"
#include "planner/profile.h"

namespace cli {
namespace {

std::size_t first_difference(const std::vector<double>& a, const std::vector<double>& b) {
  const auto same = [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  };
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end(), same);
  return at.first == a.end() && at.second == b.end() ? 0 : static_cast<std::size_t>(at.first - a.begin()) + 1;
}

// Empty: not said.
std::string device_of(const Report& report) {
  return report.setting.value("device", "");
}

bool on_device(const Report& report) {
  const std::string device = device_of(report);
  return !device.empty() && !device.starts_with("cpu");
}

std::string heading(const Report& report) {
  const int group = report.setting.value("shard_ranks", 0), tensor = report.setting.value("tensor", 1);
  const std::string device = device_of(report);
  return std::to_string(report.ranks) + (report.ranks == 1 ? " rank" : " ranks") +
         (tensor > 1 ? " (" + std::to_string(tensor) + " of them along the tensor axis)" : "") +
         (group ? " in groups of " + std::to_string(group) : "") + (device.empty() ? "" : " on " + device) + ", " +
         with_separators(report.parameters) + " parameters, " +
         (report.precision.empty() ? "" : report.precision + ", ") + std::to_string(report.runs.front().losses.size()) +
         " steps";
}

std::string last_loss(const RunResult& run) {
  return run.losses.empty() ? "-" : shortest(run.losses.back());
}

void add_bytes(Table& table, const std::string& plan, const char* what, const Bytes& bytes) {
  table.add(
      {plan, what, with_separators(bytes.predicted), with_separators(bytes.measured), bytes.agree() ? "" : "differs"});
}

constexpr const char* kNoStep = "no step shows it";  // all were skipped, say, or there was one only

void add_moved(Table& table, const std::string& what, const Bytes& bytes, bool uneven) {
  if (bytes.predicted == 0 && bytes.measured <= 0) return;
  const bool known = bytes.measured != kUnmeasured;
  const char* const note = !known ? kNoStep : uneven ? "differs between steps" : bytes.agree() ? "" : "differs";
  table.add({"", what, with_separators(bytes.predicted), known ? with_separators(bytes.measured) : "-", note});
}

// A state, and below it what of it is on other tiers and moves to and from there.
void add_state(Table& table, const RunResult& run, const std::string& plan, const char* state, const Bytes& bytes) {
  add_bytes(table, plan, state, bytes);
  for (const TierBytes& each : run.tiers) {
    if (each.state != state) continue;
    if (each.held.predicted > 0 || each.held.measured > 0)
      add_bytes(table, "", ("  on " + each.tier).c_str(), each.held);
    add_moved(table, "  read from " + each.tier + " each step", each.read, each.uneven);
    add_moved(table, "  written to " + each.tier + " each step", each.written, each.uneven);
  }
}

void add_wire(Table& table, const RunResult& run) {
  const WireBytes& wire = run.wire;
  const auto measured = [&](std::int64_t bytes) { return wire.known() ? with_separators(bytes) : "-"; };
  const char* const note = !wire.known()  ? kNoStep
                           : wire.agree() ? ""
                           : wire.uneven  ? "differs between steps"
                                          : "differs";
  table.add({"", "wire each step", with_separators(wire.predicted), measured(wire.measured), note});
  const auto part = [&](const char* what, const Bytes& bytes) {
    if (bytes.predicted == 0 && bytes.measured == 0) return;
    const bool differs = wire.known() && !bytes.agree();
    table.add({"", what, with_separators(bytes.predicted), measured(bytes.measured), differs ? "differs" : ""});
  };
  if (wire.across_hosts.predicted > 0 || wire.across_hosts.measured > 0) part("  within the host", wire.within_host);
  part("  across hosts", wire.across_hosts);
  part("  read in place", wire.in_place);
  for (const CodedBytes& each : wire.codes) {
    const std::string what = "  of " + each.state + "s in " + each.codec;
    part((what + ", within the host").c_str(), each.within_host);
    part((what + ", across hosts").c_str(), each.across_hosts);
  }
}

// Predictions of peaks may be a little above what is measured.
void add_peak(Table& table, const char* what, const Bytes& bytes, const char* unmeasured) {
  if (bytes.measured == kUnmeasured) return table.add({"", what, with_separators(bytes.predicted), "-", unmeasured});
  const double above = 100 * (static_cast<double>(bytes.predicted) / static_cast<double>(bytes.measured) - 1);
  table.add({"", what, with_separators(bytes.predicted), with_separators(bytes.measured),
             bytes.measured > 0 ? (above < 0 ? "" : "+") + fixed(above, 2) + " %" : ""});
}

std::int64_t state_bytes(const RunResult& run) {
  return run.parameter.measured + run.gradient.measured + run.optimizer.measured;
}

void print_bytes(std::ostream& out, const Report& report) {
  const char* const unmeasured = on_device(report) ? "without --timeline" : "without the arena";
  Table table(2);
  table.add({"plan", "bytes per rank", "predicted", "measured", ""});
  for (const RunResult& run : report.runs) {
    add_state(table, run, run.plan, "parameter", run.parameter);
    add_state(table, run, "", "gradient", run.gradient);
    add_state(table, run, "", "optimizer", run.optimizer);
    add_wire(table, run);
    if (run.tensor_wire.predicted > 0) add_peak(table, "tensor axis each step", run.tensor_wire, kNoStep);
    add_peak(table, "activations", run.activation, unmeasured);
    add_peak(table, "peak", run.peak, unmeasured);
  }
  table.print(out);
}

// Of runs with an activation budget.
void print_recomputation(std::ostream& out, const Report& report) {
  Table table(1);
  table.add({"plan", "activations without", "budget", "planned", "peak", "operators", "again", "of their time"});
  for (const RunResult& run : report.runs) {
    const BudgetUse& use = run.recomputation;
    if (use.empty()) continue;
    table.add({run.plan, with_separators(use.unlimited), with_separators(use.budget),
               use.planned > 0 ? with_separators(use.planned) : "-", with_separators(use.peak),
               with_separators(use.operators), with_separators(use.again), fixed(100 * use.share, 1) + " %"});
  }
  if (std::ranges::all_of(report.runs, [](const RunResult& run) { return run.recomputation.empty(); })) return;
  out << '\n';
  table.print(out);
}

void print_memory(std::ostream& out, const Report& report) {
  const auto first = static_cast<double>(state_bytes(report.runs.front()));
  Table table(1);
  table.add({"plan", "state", "of the first's", "theory", "process, peak"});
  for (const RunResult& run : report.runs) {
    const std::string part = fixed(100 * static_cast<double>(state_bytes(run)) / first, 1) + " %";
    table.add({run.plan, human_bytes(state_bytes(run)), part, run.theory.state, human_bytes(run.peak_bytes)});
  }
  table.print(out);
}

void print_speed(std::ostream& out, const Report& report) {
  Table table(1);
  table.add({"plan", "s/step, predicted", "s/step", "tokens/s", "last loss"});
  for (const RunResult& run : report.runs)
    table.add({run.plan, run.predicted_seconds ? fixed(*run.predicted_seconds, 3) : "-", fixed(run.step_seconds, 3),
               fixed(run.tokens_per_second, 0), last_loss(run)});
  table.print(out);
}

// Once, of all runs that have them from the same.
void print_estimated(std::ostream& out, const Report& report) {
  std::set<std::string> profiles;
  for (const RunResult& run : report.runs)
    if (run.profile_estimated && profiles.insert(run.profile).second)
      out << "the predicted seconds are by profile " << run.profile << planner::kEstimated << '\n';
}

std::string agreement(const RunResult& run) {
  if (!run.optimizer.agree()) return "differs";
  return run.bytes_agree() ? "" : "other bytes differ";
}

// Of a device only the time is known in which its work was queued.
std::string bandwidth(const RunResult& run, bool device) {
  return run.update_seconds && !device
             ? significant(static_cast<double>(run.update_bytes) / *run.update_seconds / 1e9, 3)
             : "-";
}

// A row of a table of optimizers; precisions are a column where there are several.
void add_optimizer(Table& table, const Report& report, const std::string& optimizer, const std::string& precision,
                   const std::vector<std::string>& cells) {
  std::vector<std::string> row{optimizer};
  if (report.precision.empty()) row.push_back(precision);
  row.insert(row.end(), cells.begin(), cells.end());
  table.add(std::move(row));
}

}  // namespace

void print_report(std::ostream& out, const Report& report) {
  out << heading(report) << "\n\n";
  print_bytes(out, report);
  print_recomputation(out, report);
  out << '\n';
  print_memory(out, report);
  out << '\n';
  print_speed(out, report);
  print_estimated(out, report);
  out << '\n';
}

void print_optimizers(std::ostream& out, const Report& report, double held) {
  const int left = report.precision.empty() ? 2 : 1;
  Table state(left), speed(left);
  add_optimizer(state, report, "optimizer", "precision", {"predicted", "measured", "of a parameter", "measured", ""});
  add_optimizer(speed, report, "optimizer", "precision", {"update, GB/s", "s/step", "last loss"});
  for (const RunResult& run : report.runs) {
    const auto each = [held](std::int64_t bytes) { return fixed(static_cast<double>(bytes) / held, 2); };
    const Bytes& bytes = run.optimizer;
    add_optimizer(state, report, run.optimizer_name, run.precision,
                  {with_separators(bytes.predicted), with_separators(bytes.measured), each(bytes.predicted),
                   each(bytes.measured), agreement(run)});
    add_optimizer(speed, report, run.optimizer_name, run.precision,
                  {bandwidth(run, on_device(report)), fixed(run.step_seconds, 3), last_loss(run)});
  }
  out << heading(report) << ", " << report.runs.front().plan << "; state of a rank in bytes, with padding\n\n";
  state.print(out);
  out << '\n';
  speed.print(out);
  out << '\n';
}

std::vector<Difference> differences(const Report& report, const std::vector<int>& groups) {
  std::vector<Difference> result;
  for (std::size_t i = 0; i < report.runs.size(); ++i) {
    const auto first = static_cast<std::size_t>(std::find(groups.begin(), groups.end(), groups[i]) - groups.begin());
    const std::size_t step = first_difference(report.runs[first].losses, report.runs[i].losses);
    if (step) result.push_back({report.runs[i].plan, report.runs[first].plan, step});
  }
  return result;
}

}  // namespace cli

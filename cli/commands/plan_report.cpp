#include "cli/commands/plan_command.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iostream>
#include <utility>

#include "cli/report/format.h"
#include "cli/report/report.h"
#include "partition/plan_settings.h"
#include "planner/fit.h"
#include "planner/loss_price.h"
#include "planner/quantity.h"

namespace cli {
namespace {

using planner::Answer;
using planner::Cost;
using planner::Reach;

struct Scale {
  const char* name;
  double factor;
};

Scale scale_of(const Answer& answer) {
  std::int64_t most = 0;
  for (const Cost& cost : answer.costs) most = std::max(most, cost.peak);
  return most >= 1'000'000'000 ? Scale{"GB", 1e9} : Scale{"MB", 1e6};
}

std::string size_of_model(std::int64_t parameters) {
  constexpr std::array<Scale, 4> scales{{{" T", 1e12}, {" B", 1e9}, {" M", 1e6}, {"", 1}}};
  const auto value = static_cast<double>(parameters);
  const auto scale = std::ranges::find_if(scales, [&](const Scale& each) { return value >= each.factor; });
  const char* const what = parameters == 1 ? " parameter" : " parameters";
  return significant(planner::rounded(value / scale->factor, 3), 3) + scale->name + what;
}

std::string heading(const Answer& answer) {
  const planner::Request& request = answer.request;
  const zero::Plan& plan = request.plans.front();
  std::string text = (answer.model.empty() ? "" : answer.model + ", ") + counted(request.shape.of_model, "parameter") +
                     ", " + counted(request.ranks, "rank");
  if (request.shape.tensor > 1)
    text += " (" + with_separators(request.shape.tensor) + " of them along the tensor axis)";
  if (request.shard > 0) text += " in groups of " + with_separators(request.shard);
  if (request.hosts > 1) text += " on " + counted(request.hosts, "host");
  text += ", " + std::string(name(plan.precision())) + ", " + answer.optimizer + "\n";
  text += plan.accumulate() == 1 ? "1 micro-batch" : with_separators(plan.accumulate()) + " micro-batches";
  return text + " a step, of " + counted(request.batch, "sequence") + " of " + counted(request.seq, "token");
}

// Three digits, and all of those before the point.
std::string speed(double tokens_per_second) {
  return tokens_per_second < 1000 ? planner::three_digits(tokens_per_second)
                                  : with_separators(std::llround(tokens_per_second));
}

// Bytes in the unit of an answer.
class Cells {
 public:
  explicit Cells(const Answer& answer) : scale_(scale_of(answer)) {}
  const char* unit() const { return scale_.name; }
  std::string operator()(std::int64_t bytes) const {
    return planner::three_digits(static_cast<double>(bytes) / scale_.factor);
  }

 private:
  Scale scale_;
};

void print_memory(std::ostream& out, const Answer& answer) {
  const Cells cell(answer);
  const bool limited = answer.request.device_memory.has_value();
  Table table(1);
  std::vector<std::string> head{"plan",  "parameter",   "gradient", "optimizer",
                                "state", "activations", "buffers",  "peak"};
  if (limited) head.emplace_back("fits");
  table.add(head);
  for (const Cost& cost : answer.costs) {
    const zero::StateBytes& state = cost.estimate.state;
    std::vector<std::string> row{label_of(answer, cost),        cell(state.parameter), cell(state.gradient),
                                 cell(state.optimizer),         cell(state.total()),   cell(cost.activations.bytes),
                                 cell(cost.estimate.buffers()), cell(cost.peak)};
    if (limited) row.emplace_back(cost.fits() ? "yes" : "no");
    table.add(row);
  }
  out << "\nEach rank, in " << cell.unit() << ":\n\n";
  table.print(out);
}

void print_step(std::ostream& out, const Answer& answer) {
  const Cells cell(answer);
  const bool spread = answer.request.hosts > 1;
  Table table(1);
  std::vector<std::string> head{"plan", "wire"};
  if (spread) head.emplace_back("across hosts");
  const bool cut = answer.request.shape.tensor > 1;
  if (cut) head.emplace_back("tensor axis");
  for (const char* each : {"s/step", "tokens/s", "MFU"}) head.emplace_back(each);
  table.add(head);
  for (const Cost& cost : answer.costs) {
    std::vector<std::string> row{label_of(answer, cost), cell(cost.wire())};
    if (spread) row.push_back(cell(cost.estimate.wire.across_hosts()));
    if (cut) row.push_back(cell(cost.tensor.bytes));
    row.push_back(cost.priced() ? significant(cost.seconds, 3) : "-");
    row.push_back(cost.priced() ? speed(cost.speed.tokens_per_second) : "-");
    row.push_back(cost.speed.utilization ? planner::three_digits(100 * *cost.speed.utilization) + " %" : "-");
    table.add(row);
  }
  out << "\nA step; on the wire what each rank receives, in " << cell.unit() << "; tokens of all ranks:\n\n";
  table.print(out);
}

// A row for each plan and tier on which it has states.
void print_tiers(std::ostream& out, const Answer& answer) {
  const Cells cell(answer);
  Table table(2);
  table.add({"plan", "tier", "parameter", "gradient", "optimizer", "read", "written"});
  bool any = false;
  for (const Cost& cost : answer.costs) {
    std::string plan = label_of(answer, cost);
    for (const zero::Tier tier : {zero::Tier::host, zero::Tier::disk}) {
      const zero::StateBytes state = cost.estimate.on(tier);
      const zero::TierTraffic::Entry moved = cost.estimate.moved.step().on(tier);
      if (state.total() == 0 && moved.total() == 0) continue;
      table.add({std::exchange(plan, ""), std::string(name(tier)), cell(state.parameter), cell(state.gradient),
                 cell(state.optimizer), cell(moved.read), cell(moved.written)});
      any = true;
    }
  }
  if (!any) return;
  out << "\nOn other tiers, of each rank, in " << cell.unit() << "; read and written in a step:\n\n";
  table.print(out);
}

void print_tier_seconds(std::ostream& out, const Answer& answer) {
  Table table(1);
  table.add({"plan", "reading", "updating", "writing", "beside"});
  bool any = false;
  for (const Cost& cost : answer.costs) {
    if (!cost.priced() || zero::offload_of(cost.plan).empty()) continue;
    std::vector<std::string> row{label_of(answer, cost)};
    const planner::TierSeconds& of = cost.tiers;
    for (const double seconds : {of.alone + of.reading, of.updating, of.writing, of.beside})
      row.push_back(significant(seconds, 3));
    table.add(std::move(row));
    any = true;
  }
  if (!any) return;
  out << "\nSeconds of a step for that. An update takes the slowest of reading, updating and writing; what moves\n"
         "beside computing counts as far as it takes longer:\n\n";
  table.print(out);
}

void print_moments(std::ostream& out, const Answer& answer) {
  const std::string& first = answer.costs.front().moment;
  const bool same = std::ranges::all_of(answer.costs, [&](const Cost& cost) { return cost.moment == first; });
  out << "\nMoment of the peak: ";
  if (same) out << first;
  for (std::size_t i = 0; !same && i < answer.costs.size(); ++i)
    out << (i ? "; " : "") << "of " << label_of(answer, answer.costs[i]) << ", " << answer.costs[i].moment;
  out << ".\n";
}

// The largest batch and the longest sequence, each with the other as it was asked for.
std::string activations_of(const Reach& reach, std::int64_t positions) {
  std::string text;
  if (reach.largest_batch > 0) text = "a batch of up to " + with_separators(reach.largest_batch);
  if (reach.longest_seq > 0)
    text += std::string(text.empty() ? "" : " or ") +
            (reach.longest_seq == positions ? "any --seq" : "a --seq of up to " + with_separators(reach.longest_seq));
  return text.empty() ? "no batch" : text;
}

std::string sentence(const Cost& cost, const Reach& reach, const Answer& answer) {
  std::string text = label_of(answer, cost) + ": ";
  text += reach.largest_parameters > 0 ? "models of up to " + size_of_model(reach.largest_parameters) + " fit"
                                       : std::string("no model fits");
  text += "; this one with " + activations_of(reach, answer.request.shape.config.max_position_embeddings);
  const bool none = reach.largest_batch == 0 && reach.longest_seq == 0;
  if (reach.least_ranks == 0)
    return text + (none ? ", on however many ranks" : ", and this batch on no number of ranks");
  if (reach.least_ranks == answer.request.ranks) return text + ", and on no fewer ranks";
  return text + ", and this batch on " + counted(reach.least_ranks, "rank") + " or more";
}

void print_reach(std::ostream& out, const Answer& answer) {
  if (answer.reach.empty()) return;
  out << "\nIn " << planner::in_units(*answer.request.device_memory) << ":\n";
  for (std::size_t i = 0; i < answer.costs.size(); ++i)
    out << "  " << sentence(answer.costs[i], answer.reach[i], answer) << ".\n";
}

void print_list(std::ostream& out, const std::string& heading, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out << '\n' << heading << '\n';
  for (const std::string& line : lines) out << "  " << line << ".\n";
}

void print_assumed(std::ostream& out, const Answer& answer) {
  print_list(out, "Assumed:", planner::assumptions(answer));
  if (!answer.deepspeed) return;
  print_list(out, "From DeepSpeed's configuration:", answer.deepspeed->taken);
  print_list(out, "\"auto\" there, so the options' values or defaults:", answer.deepspeed->automatic);
  print_list(out, "Not needed:", answer.deepspeed->not_needed);
}

// What was chosen, as options.
std::string options_of(const Answer& answer, const Cost& cost) {
  std::string text;
  const std::string offload = zero::offload_of(cost.plan);
  if (!offload.empty())
    text += " --offload " + offload + (offload.find("=disk") < offload.npos ? " --disk DIR" : "") +
            (cost.plan.delays_update() ? " --delay-update" : "");
  if (cost.batch != answer.request.batch)
    text += " --batch " + std::to_string(cost.batch) + " --accumulate " + std::to_string(cost.plan.accumulate());
  if (answer.request.chooses_activations && cost.plan.activation_budget())
    text += " --activation-budget " + cost.plan.activation_budget().text();
  return text;
}

std::string price_of_budget(const Cost& cost) {
  if (!cost.plan.activation_budget() || !cost.priced()) return {};
  const bool stores = cost.plan[zero::State::activation].tier != zero::Tier::device;
  return "   Of its step " + significant(cost.plan.accumulate() * cost.again.seconds, 3) +
         (stores ? " s bring activations back, " : " s are activations that are computed again, ") +
         planner::three_digits(100 * cost.again.share) + " % of the computing.\n";
}

std::string price_in_loss(const Cost& cost) {
  if (!cost.rounds) return {};
  const auto price = planner::loss_price(cost.plan);
  if (!price) return "   It rounds what ranks compute with; what that costs in loss was not measured.\n";
  return "   It rounds what crosses hosts: final losses were " + planner::three_digits(price->mean) +
         " % above those of zero3, the worst of three seeds " + planner::three_digits(price->worst) +
         " %, where that was measured (the micro model, 2,000 steps).\n";
}

}  // namespace

std::string label_of(const Answer& answer, const Cost& cost) {
  std::string text = cost.plan.label();
  if (cost.batch != answer.request.batch)
    text += ", " + with_separators(cost.plan.accumulate()) + " micro-batches of " + with_separators(cost.batch);
  const zero::ActivationBudget& budget = cost.plan.activation_budget();
  if (!budget) return text;
  return text + ", activations within " + (budget.share > 0 ? budget.text() : planner::in_units(budget.bytes));
}

void print_plans(std::ostream& out, const Answer& answer) {
  out << heading(answer) << '\n';
  print_memory(out, answer);
  print_step(out, answer);
  print_tiers(out, answer);
  print_tier_seconds(out, answer);
  print_moments(out, answer);
  print_reach(out, answer);
  print_assumed(out, answer);
}

void print_fit(std::ostream& out, const Answer& answer) {
  int place = 0;
  for (const std::size_t i : planner::ranking(answer.costs)) {
    const Cost& cost = answer.costs[i];
    if (place == 0) out << '\n';
    out << ++place << ". " << label_of(answer, cost)
        << " fits: " << (cost.priced() ? significant(cost.seconds, 3) + " s a step, " : "")
        << planner::in_units(-cost.excess) << " to spare";
    if (cost.dearer > 0) out << ", " << significant(cost.dearer, 3) << " s more than with room for what was asked for";
    const std::string options = options_of(answer, cost);
    out << (options.empty() ? "" : ";" + options) << ".\n" << price_of_budget(cost) << price_in_loss(cost);
  }
  for (std::size_t i = 0; i < answer.costs.size(); ++i) {
    if (answer.costs[i].fits()) continue;
    print_list(out, label_of(answer, answer.costs[i]) + " does not fit:", answer.reach[i].reasons);
  }
}

}  // namespace cli

// zero plan: what each plan would cost, and which one to take. No torch.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/options.h"
#include "planner/answer_json.h"

namespace cli {

struct PlanOptions : SharedOptions {
  std::string model;       // a preset or a config.json; empty: `parameters`
  std::string parameters;  // a count
  int ranks = 1;
  int hosts = 1;
  std::string memory = "auto";
  std::string device_memory;             // empty: that of the devices of `profile`; else no limit
  std::string host_memory, disk_space;   // of a host; empty: no limit
  std::string network;                   // of hosts, instead of the profile's; empty: that one
  std::string profile;                   // empty: what was measured here, unless for devices; else h100
  std::optional<std::int64_t> seq;       // none: see kUsualSeq
  std::optional<std::int64_t> batch;     // none: that of --ds-config, else of `zero train`
  std::optional<std::string> optimizer;  // likewise
  std::vector<std::string> plans;        // empty: that of --ds-config, else all
  std::string ds_config;
  bool fit = false;
  bool tensor_given = false;  // else --fit chooses it
  std::string out = "zero-plan.json";
  std::string json;     // of both, "-" is standard output, which has nothing else then
  std::string command;  // as it was typed
};

// What models of today are trained with; those with fewer positions, with as many.
inline constexpr std::int64_t kUsualSeq = 4096;

void add_plan_options(CLI::App& command, PlanOptions& options);

// Returns 1 where --fit finds no plan that fits.
int plan(const PlanOptions& options);

// The plan's, and what else was chosen for it.
std::string label_of(const planner::Answer& answer, const planner::Cost& cost);
// What each plan costs, how far it goes, and what was assumed.
void print_plans(std::ostream& out, const planner::Answer& answer);
// The plans that fit, in order, and why the others do not.
void print_fit(std::ostream& out, const planner::Answer& answer);

}  // namespace cli

// One table of what a training can be set to. A row chooses a value for each column, and every contract of
// contracts_test.cpp is tested for every row: what is added here as a value meets all the others in all contracts.
#pragma once

#include <string>
#include <vector>

#include "harness.h"

namespace zero::test {

// How many there are, of a shard group and of a host. 0: all.
struct Ranks {
  int count = 2;
  int shard = 0;
  int per_host = 0;
  bool operator==(const Ranks&) const = default;
};

struct Setting {
  std::string preset = "ddp";
  Ranks ranks = {};
  Tier parameter = Tier::device, gradient = Tier::device, optimizer = Tier::device;
  double share = 1;  // of what the optimizer keeps, on its tier
  bool delays = false;
  std::int64_t budget = 0;
  int overlap = 0;
  Wire gather_in = Wire::native;
  KeptCopy kept = KeptCopy::none;
  Wire reduce_in = Wire::native;
  bool feeds_back = false;
  Precision precision = Precision::fp32;
  std::size_t rule = 0;  // of update_rules()
  int accumulate = 1;
  bool reproducible = false;
  bool groups = false;  // of parameters, with a schedule of learning rates

  Plan plan() const;
  MeshShape mesh() const;
  Job job() const;
  std::string title() const;  // for the name of a test
  std::vector<State> states_on(Tier tier) const;

  // In words of the error that an engine of it is. Empty where there can be one.
  std::vector<std::string> faults() const;
  bool valid() const { return faults().empty(); }

  // The setting that gives the same bits, by docs/concepts.md: in memory and replicated, as far as there is one; never
  // the same setting.
  Setting reference() const;
  // The same training under another plan, with its states on other tiers where they can be; the reference where there
  // is none.
  Setting elsewhere() const;

  bool operator==(const Setting&) const = default;
};

// For GoogleTest.
void PrintTo(const Setting& setting, std::ostream* out);

// Every optimizer of the engine, in every form that has code of its own.
const std::vector<Optimizer>& update_rules();
bool updates_whole_tensors(const Optimizer& optimizer);
// Whether models of the ranks are on devices; there are no more tiers than the disk's where they are not.
bool on_devices();

// Rows in which every two values meet that may go together: with all states in memory, and with states on any tier.
// ZERO_TEST_LONG=1: ten times as many.
const std::vector<Setting>& settings();
// Fewer: with an optimizer of each kind, and no values that differ by number alone.
std::vector<Setting> settings_of_each_kind();
// Rows that cannot be.
std::vector<Setting> refused_settings();

}  // namespace zero::test

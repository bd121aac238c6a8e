// What a machine can do, as far as the time of a step depends on it. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zero/plan.h"

namespace planner {

// How fast one rank computes in one precision while all of its host's ranks do. Rates that are reached, but for the
// peak.
struct Pace {
  double matrix_flops = 0;      // flop/s of products of matrices
  double matrix_bandwidth = 0;  // bytes/s of what they read and write
  double attention_flops = 0;   // flop/s of causal attention
  double sweep_bandwidth = 0;   // bytes/s of operators that go through their operands once
  double operator_seconds = 0;  // to run an operator at all
  double waiting = 0;     // part of the time of a micro-batch whose gradients are reduced, 0 to 1: for other ranks
  double peak_flops = 0;  // flop/s that nothing exceeds, as its vendor says; 0: not known
  bool operator==(const Pace&) const = default;
};

struct Profile {
  std::string name;
  int ranks = 0;                    // that worked at once when it was measured; 0: any
  int threads = 0;                  // of an operator, likewise
  Pace fp32, bf16, fp16, fp8;       // matrix_flops of 0: not known
  double copy_bandwidth = 0;        // bytes/s that a copy in memory reads and writes
  double update_bandwidth = 0;      // bytes/s that an optimizer's update reads and writes
  double collective_bandwidth = 0;  // bytes/s that a rank receives from ranks of its host; 0: see within_host()
  double collective_seconds = 0;    // to run a collective at all
  double network_bandwidth = 0;     // bytes/s that a rank receives from other hosts
  double network_seconds = 0;       // to run a collective at all whose bytes cross hosts; 0: not known
  double disk_bandwidth = 0;        // bytes/s that are written until they are on the disk
  double device_memory = 0;         // bytes of a rank's device; 0: ranks compute in the host's memory
  double host_link_bandwidth = 0;   // bytes/s between a device and pinned memory of its host, one way; 0: not known
  double pinned_memory = 0;         // bytes of its host's memory that a rank may pin; 0: not known
  double host_bandwidth = 0;        // bytes/s that an update in its host's memory reads and writes; 0: not known
  double disk_read_bandwidth = 0;   // bytes/s of states on disk; 0, as the next: not known
  double disk_write_bandwidth = 0;
  double overlap = 0;      // part of the computing behind which collectives can hide, 0 to 1
  bool estimated = false;  // from data sheets: nothing of it was measured

  // Throws zero::ConfigError where the profile does not know the precision.
  const Pace& pace(zero::Precision precision) const;
  bool knows(zero::Precision precision) const;
  // Bytes/s that a rank receives from ranks of its host: through its memory where devices have no links of their own.
  double within_host() const { return collective_bandwidth > 0 ? collective_bandwidth : host_link_bandwidth; }
  // That an update reads and writes of states on that tier, where it is computed; 0: not known.
  double update_bandwidth_of(zero::Tier tier) const {
    return tier == zero::Tier::device || device_memory == 0 ? update_bandwidth : host_bandwidth;
  }
  bool operator==(const Profile&) const = default;
};

// Of one whose figures nobody measured.
inline constexpr const char* kEstimated = ", estimated from data sheets, not measured";

// Where a profile keeps a precision's pace.
Pace Profile::*pace_of(zero::Precision precision);

// a100, h100, h200: see the table in profile.cpp.
std::vector<std::string_view> given_profiles();

// One of given_profiles(), or a file. Throws zero::ConfigError, naming file and key, for what is missing, unknown or
// not a positive number.
Profile profile_named(const std::string& name_or_path);

// Where `zero bench profile` leaves what it measures of this kind of device, unless told otherwise: in the user's cache
// folder.
std::string usual_profile_path(const std::string& kind = "cpu");

std::string to_json(const Profile& profile);
// `source` says in errors whose text it is.
Profile profile_from_json(const std::string& text, const std::string& source);

}  // namespace planner

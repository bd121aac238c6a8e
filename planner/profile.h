// What a machine can do, as far as the time of a step depends on it. No torch.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "zero/plan.h"

namespace planner {

// Rates that are reached, not peaks; of one rank.
struct Profile {
  std::string name;
  double copy_bandwidth = 0;        // bytes/s that a copy in the device's memory reads and writes
  double collective_bandwidth = 0;  // bytes/s that a rank receives from ranks of its host
  double network_bandwidth = 0;     // bytes/s that it receives from other hosts
  double matrix_flops_fp32 = 0;     // flop/s of products of large matrices
  double matrix_flops_bf16 = 0;
  double matrix_flops_fp16 = 0;
  double matrix_flops_fp8 = 0;
  double disk_bandwidth = 0;    // bytes/s
  double operator_seconds = 0;  // to start an operator

  double matrix_flops(zero::Precision precision) const;
  bool operator==(const Profile&) const = default;
};

// a100, h100, h200: see the table in profile.cpp.
std::vector<std::string_view> given_profiles();

// One of given_profiles(), or a file. Throws zero::ConfigError, naming file and key, for what is missing, unknown or
// not a positive number.
Profile profile_named(const std::string& name_or_path);

std::string to_json(const Profile& profile);
// `source` says in errors whose text it is.
Profile profile_from_json(const std::string& text, const std::string& source);

}  // namespace planner

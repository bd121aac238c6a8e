// What a run was asked for, as far as its numbers depend on it and its plan, model and optimizer do not say so. No
// torch.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace cli {

// As the options of `zero train` that have these names; defaults are resolved.
struct RunSetting {
  std::uint64_t seed = 0;
  std::int64_t steps = 0;
  std::string schedule = {};
  std::int64_t warmup = 0;
  double clip = 0;
  std::string data = {};  // empty: the default text
  int tokens = 0;         // 0: by the file's name
  int threads = 1;
  std::string device = {};  // empty: not said, by an older program
  bool reproducible = false;
  bool fp32_norms = false;
  double loss_scale = 0;
  std::string fp8_scaling = {};
  std::string reduce_in = {};  // empty: the plan's choice
  std::string gather_in = {};
  std::string offload = {};   // states on other tiers
  bool delay_update = false;  // of the optimizer there
  int shard_ranks = 0;        // 0: all
  std::uint64_t resident_budget = 0;
  std::int64_t eval_every = 0;
  bool operator==(const RunSetting&) const = default;
};

void write_setting(const RunSetting& setting, nlohmann::ordered_json& json);
// What `json` does not say has its default.
RunSetting read_setting(const nlohmann::ordered_json& json);

}  // namespace cli

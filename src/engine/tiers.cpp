#include "engine/tiers.h"

#include <string>

#include "zero/error.h"

namespace zero {

Options with_tiers(const Plan& plan, Options options, c10::Device where) {
  for (const State state : {State::parameter, State::gradient, State::optimizer}) {
    const Tier tier = plan[state].tier;
    if (tier == Tier::device) continue;
    const std::string what = std::string(name(state)) + " on tier " + std::string(name(tier));
    if (tier == Tier::host && where.is_cpu())
      throw ConfigError(what + ": the model is on the CPU, whose memory that is already",
                        "use Tier::disk, or move the model to a device");
    if (tier == Tier::disk && options.disk.directories.empty())
      throw ConfigError(what + ": no directory was given", "name one, for each disk, in Options::disk.directories");
  }
  if (plan.delays_update() && !where.is_cpu() && plan[State::gradient].tier == Tier::device)
    throw ConfigError("a delayed update reads gradients beside the model's computing, which are on its device",
                      "offload them, too: Plan::offload(State::gradient, Tier::host)");
  return options;
}

}  // namespace zero

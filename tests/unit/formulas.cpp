#include "unit/formulas.h"

#include <algorithm>

namespace planner {
namespace {

constexpr double kUsualSlack = 1.5;  // DeepSpeed's, for the host

// Bytes of an element that is `bits` wide, in elements of 16 bits, with its part of a scale of 32.
double elements_of_sixteen_bits(double bits, double block) {
  return bits / 16 + (block > 0 ? 32 / block / 16 : 0);
}

double devices(const DeepSpeedSetting& setting) {
  return static_cast<double>(setting.devices) * setting.hosts;
}

}  // namespace

double saved_by_selective_recompute(const Transformer& model) {
  const double scores = 5 * model.heads * model.seq / model.hidden;
  return scores / (34 + scores);
}

double operations_of_selective_recompute(const Transformer& model, double vocabulary) {
  const double scores = model.seq / (6 * model.hidden), logits = vocabulary / (12 * model.hidden * model.layers);
  return (1 + 2 * scores + logits) / (1 + scores + logits);
}

double infinity_parameters(const Transformer& model) {
  return 12 * model.layers * model.hidden * model.hidden;
}

double infinity_states(const Transformer& model) {
  return 20 * infinity_parameters(model);
}

// 2 bytes for each parameter and gradient of the layer from h to 4 h.
double infinity_working_memory(const Transformer& model) {
  return (2 + 2) * model.hidden * 4 * model.hidden;
}

DeepSpeedNeeds deepspeed_stage2(const DeepSpeedSetting& setting) {
  const double psi = setting.parameters, on_host = setting.devices;
  if (setting.offload_optimizer) return {2 * psi, psi * std::max(4 * on_host, 16.0) * kUsualSlack};
  return {2 * psi + 18 * psi / devices(setting), psi * 4 * on_host * kUsualSlack};
}

double deepspeed_stage2_device_as_documented(const DeepSpeedSetting& setting) {
  return 4 * setting.parameters + 16 * setting.parameters / devices(setting);
}

DeepSpeedNeeds deepspeed_stage3(const DeepSpeedSetting& setting) {
  const double psi = setting.parameters, layer = 4 * setting.largest_layer, all = devices(setting);
  const double share = 1.0 / setting.hosts, built = 4 * psi * setting.devices;
  const bool whole = !setting.sharded_from_the_start;
  if (!setting.offload_optimizer) {
    const double host = whole ? built : 4 * setting.largest_layer * setting.devices;
    return {layer + 18 * psi / all, host * kUsualSlack};
  }
  const double kept = (setting.offload_parameters ? 18 : 16) * psi * share;
  const double device = layer + (setting.offload_parameters ? 0 : 2 * psi / all);
  return {device, (whole ? std::max(built, kept) : kept) * kUsualSlack};
}

double offload_device_bytes(Offloaded offloaded) {
  switch (offloaded) {
    case Offloaded::nothing: return 16;
    case Offloaded::gradients: return 14;
    case Offloaded::optimizer: return 4;
    case Offloaded::both: return 2;
  }
  return 0;
}

double zero3_volume() {
  return 3;
}

// Backward gathers inside the host.
double zeropp_volume(double block) {
  return elements_of_sixteen_bits(8, block) + 0 + elements_of_sixteen_bits(4, block);
}

double secondary_partition(double parameters, int ranks_of_a_host) {
  return 2 * parameters / ranks_of_a_host;
}

}  // namespace planner

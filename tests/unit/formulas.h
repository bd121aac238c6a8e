// Published formulas about the memory and the volume of training, as their sources have them. They are for comparison,
// beside what is computed from plans and layouts. Psi: parameters; M: elements of one copy of the model. No torch.
#pragma once

#include <cstdint>

#include "planner/activation_theory.h"

namespace planner {

inline constexpr double kGiB = 0x1p30;

// Korthikanti et al., 2022: share of a layer's activations that selective recomputation does not keep: attention's
// scores (section 5).
double saved_by_selective_recompute(const Transformer& model);
// And the operations of a step with it over those without, for a vocabulary of that size (section 6).
double operations_of_selective_recompute(const Transformer& model, double vocabulary);

// Rajbhandari et al., 2021, "ZeRO-Infinity", section 3: parameters, bytes of model states (20 a parameter: 16-bit
// parameters and gradients, fp32 gradients, weights and two moments), and the working memory that the largest linear
// layer needs for parameters and gradients.
double infinity_parameters(const Transformer& model);
double infinity_states(const Transformer& model);
double infinity_working_memory(const Transformer& model);

// DeepSpeed's estimators of memory for stages 2 and 3 (runtime/zero): bytes of a rank's device and of a host.
struct DeepSpeedNeeds {
  double device = 0;
  double host = 0;
};
struct DeepSpeedSetting {
  double parameters = 0;     // Psi
  double largest_layer = 0;  // parameters of it
  int devices = 1;           // of a host
  int hosts = 1;
  bool offload_optimizer = false;
  bool offload_parameters = false;     // of stage 3
  bool sharded_from_the_start = true;  // zero.Init, of stage 3
};
DeepSpeedNeeds deepspeed_stage2(const DeepSpeedSetting& setting);
DeepSpeedNeeds deepspeed_stage3(const DeepSpeedSetting& setting);
// What DeepSpeed's documentation shows for stage 2 without offload, by an older rule.
double deepspeed_stage2_device_as_documented(const DeepSpeedSetting& setting);

// Ren et al., 2021, "ZeRO-Offload", section 3 and table 1: bytes for each parameter that stay on the device, by what is
// on the host.
enum class Offloaded : std::uint8_t { nothing, gradients, optimizer, both };
double offload_device_bytes(Offloaded offloaded);
inline constexpr double kStateBytes = 16;  // of a parameter in mixed precision with Adam

// Wang et al., 2023, "ZeRO++": elements that a rank exchanges with other hosts in a step, in units of M.
double zero3_volume();
// Weights in int8, gathered across hosts in forward only, gradients in int4; every block of `block` values has a scale
// of 32 bits, 0: not counted.
double zeropp_volume(double block);
// Bytes of a second copy of 16-bit parameters, sharded over the ranks of a host.
double secondary_partition(double parameters, int ranks_of_a_host);

}  // namespace planner

// Plans that keep states of models on the simulated accelerator elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>

#include "device/engines.h"
#include "device/linked.h"

namespace zero::test {

// Small operations, so that there are many of them.
inline DiskOptions small_disk() {
  return {.directories = {std::filesystem::temp_directory_path()}, .checks = true, .block = 16384, .depth = 4};
}

inline Plan offloaded(const Plan& plan, Tier optimizer, Tier gradient) {
  return plan.offload(State::optimizer, optimizer).offload(State::gradient, gradient);
}

inline Plan to_host(const Plan& plan) {
  return offloaded(plan, Tier::host, Tier::host);
}

// Parameters of several stretches.
struct Broad : torch::nn::Module {
  static constexpr std::int64_t kWidth = 900;
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {2, kWidth}).to(first->weight.device());
    return second(first(x)).to(at::kFloat).square().mean();
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(kWidth, kWidth));
};

}  // namespace zero::test

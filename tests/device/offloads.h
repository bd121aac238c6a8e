// Plans that keep states of models on the simulated accelerator elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "device/engines.h"
#include "device/linked.h"
#include "folder.h"

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

// A job of the same precision goes on from what it saved under each plan, under every plan to the same end.
inline void expect_saved_and_loaded(const std::vector<Plan>& plans, Job job) {
  const Precision precision = job.plan.precision();
  const Course<Lm> course = lm_on(accelerator::kType, 0);
  for (const Plan& from : plans) {
    const Folder folder;
    job.plan = Plan(from).precision(precision);
    on_ranks<Lm>(job, course, [&](Lm& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      engine.save(folder.path(), {.background = true});
      engine.finish_save();
    });
    std::optional<Outcome> expected;
    for (const Plan& to : plans) {
      job.plan = Plan(to).precision(precision);
      Outcome end;
      on_ranks<Lm>(job, course, [&](Lm& model, Engine& engine, int rank) {
        engine.load(folder.path());
        Outcome run;
        for (int step = 0; step < 2; ++step) run.record(train_step(model, engine));
        run.parameters = parameters_of(model, engine);
        if (rank == 0) end = run;
      });
      EXPECT_EQ(difference(expected.value_or(end), end), "")
          << name(precision) << ", " << from.label() << " to " << to.label();
      expected = end;
    }
  }
}

}  // namespace zero::test

// Parameters that get no gradient in a step: the step leaves them as they are, to the bit, wherever states lie and
// whatever was in the memory before that engines take.
#include <torch/torch.h>

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "covering.h"
#include "harness.h"
#include "memory/torch/arena_allocator.h"
#include "settings.h"

namespace zero::test::untouched_test {

constexpr std::int64_t kWidth = 24;
constexpr int kSteps = 5;

// Units with parameters that a step uses and others that it does not: never, in every other one, or from the third on,
// when `tail` is frozen and `late` is thawed.
struct Parts : torch::nn::Module {
  struct Block : torch::nn::Module {
    torch::nn::Linear used = register_module("used", torch::nn::Linear(kWidth, kWidth));
    torch::nn::Linear expert = register_module("expert", torch::nn::Linear(kWidth, kWidth));
    torch::nn::Linear unused = register_module("unused", torch::nn::Linear(kWidth, kWidth));
    torch::nn::Linear late = register_module("late", torch::nn::Linear(kWidth, kWidth));
  };
  std::shared_ptr<Block> block = register_module("block", std::make_shared<Block>());
  torch::nn::Linear idle = register_module("idle", torch::nn::Linear(kWidth, kWidth));
  torch::nn::Linear tail = register_module("tail", torch::nn::Linear(kWidth, kWidth));
  int step = 0;

  Parts() { freeze(block->late, true); }

  static void freeze(torch::nn::Linear& layer, bool frozen) {
    for (at::Tensor& parameter : layer->parameters()) parameter.set_requires_grad(!frozen);
  }
  void begin(int number) {
    step = number;
    if (step != 2) return;
    freeze(tail, true);
    freeze(block->late, false);
  }
  // Whether the step has a gradient of a parameter.
  bool uses(const std::string& name) const {
    const auto of = [&](const char* layer) { return name.starts_with(layer); };
    return of("block.used") || (of("block.expert") && step % 2 == 1) || (of("block.late") && step >= 2) ||
           (of("tail") && step < 2);
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = block->used(numbers(index, {2, kWidth}));
    if (step % 2 == 1) x = x + block->expert(x);
    if (step >= 2) x = x + block->late(x);
    return tail(x).to(at::kFloat).square().mean();
  }
};

// The model's own, by name, as they are stored.
std::map<std::string, at::Tensor> stored(const Parts& model) {
  const Gather scope(model.parameters());
  std::map<std::string, at::Tensor> values;
  for (const auto& item : model.named_parameters()) values[item.key()] = item.value().detach().clone();
  return values;
}

Job job_of(const Plan& plan, int ranks) {
  Job job{.plan = plan, .ranks = ranks, .optimizer = AdamW{.lr = 2e-3, .weight_decay = 0.1}};
  job.options.seed = 3;
  if (plan.precision() == Precision::fp16) job.options.loss_scale = LossScale{.initial = 8};  // no step overflows
  job.options.disk = {
      .directories = {std::filesystem::temp_directory_path()}, .checks = true, .block = 16384, .depth = 4};
  return job;
}

enum class Where { device, optimizer_on_disk, delayed, parameters_too };

std::optional<Plan> placed(const Plan& plan, Where where, int ranks) {
  const Plan on_disk = plan.offload(State::optimizer, Tier::disk);
  // A delayed update reads gradients while a device computes.
  const Plan readable = on_devices() ? on_disk.offload(State::gradient, Tier::host) : on_disk;
  const Plan result = where == Where::device              ? plan
                      : where == Where::optimizer_on_disk ? on_disk
                      : where == Where::delayed           ? readable.delay_update()
                                                          : on_disk.offload(State::parameter, Tier::disk);
  return result.faults(ranks).empty() ? std::optional(result) : std::nullopt;
}

// NaN of every type.
class NewMemoryIsNaN {
 public:
  NewMemoryIsNaN() { fill_new_memory(0xff); }
  ~NewMemoryIsNaN() { fill_new_memory(std::nullopt); }
  NewMemoryIsNaN(const NewMemoryIsNaN&) = delete;
  NewMemoryIsNaN& operator=(const NewMemoryIsNaN&) = delete;
};

Outcome run(const Job& job) {
  return train_by<Parts>(job, {}, [](Parts& model, Engine& engine, Outcome& outcome, int) {
    for (int step = 0; step < kSteps; ++step) {
      model.begin(step);
      outcome.record(train_step(model, engine));
    }
    outcome.parameters = parameters_of(model, engine);
  });
}

using Case = std::tuple<Plan, Precision, int, Where>;
class UntouchedParameters : public testing::TestWithParam<Case> {};

TEST_P(UntouchedParameters, KeepTheirBits) {
  const auto& [preset, precision, ranks, where] = GetParam();
  const std::optional<Plan> plan = placed(preset.precision(precision), where, ranks);
  if (!plan) return;
  const NewMemoryIsNaN filled;
  on_ranks<Parts>(job_of(*plan, ranks), {}, [](Parts& model, Engine& engine, int) {
    std::map<std::string, at::Tensor> before = stored(model);
    for (int step = 0; step < kSteps; ++step) {
      model.begin(step);
      EXPECT_TRUE(train_step(model, engine).applied);
      std::map<std::string, at::Tensor> after = stored(model);
      for (const auto& [name, value] : after) {
        EXPECT_TRUE(value.isfinite().all().item<bool>()) << name << " after step " << step;
        EXPECT_TRUE(model.uses(name) || value.equal(before.at(name))) << name << " after step " << step;
      }
      before = std::move(after);
    }
  });
}

// Where nobody looks between steps, an update is under way beside the next one.
TEST_P(UntouchedParameters, DependOnNoMemoryThatNobodyFilled) {
  const auto& [preset, precision, ranks, where] = GetParam();
  const std::optional<Plan> plan = placed(preset.precision(precision), where, ranks);
  if (!plan) return;
  const Outcome expected = run(job_of(*plan, ranks));
  const NewMemoryIsNaN filled;
  EXPECT_EQ(difference(expected, run(job_of(*plan, ranks))), "");
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [plan, precision, ranks] : covering(
           all_plans(),
           std::vector{Precision::fp32, Precision::bf16, Precision::fp16, Precision::bf16_kahan, Precision::bf16_sr},
           std::vector{1, 2}))
    for (const Where where : {Where::device, Where::optimizer_on_disk, Where::delayed, Where::parameters_too})
      all.emplace_back(plan, precision, ranks, where);
  return all;
}

std::string name_of(const testing::TestParamInfo<Case>& tested) {
  const auto& [plan, precision, ranks, where] = tested.param;
  constexpr std::array kWhere{"", "OptimizerOnDisk", "Delayed", "ParametersToo"};
  return in_title(ranks, 1, precision) + in_title(plan.label()) + kWhere[static_cast<std::size_t>(where)];
}

INSTANTIATE_TEST_SUITE_P(All, UntouchedParameters, testing::ValuesIn(cases()), name_of);

}  // namespace zero::test::untouched_test

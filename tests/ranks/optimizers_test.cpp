// Every optimizer computes what LibTorch's does; groups of parameters have optimizers of their own.
#include "optimizers.h"

#include <torch/torch.h>

#include "device/kernels.h"
#include "lm.h"
#include "torch_optimizers.h"

namespace zero::test::optimizers_test {

constexpr int kSteps = 20;

// Distances in units of the last place of `size`.
at::Tensor units_apart(const at::Tensor& mine, const at::Tensor& theirs, const at::Tensor& size) {
  const at::Tensor unit = at::ldexp(at::ones_like(size), std::get<1>(at::frexp(size)) - 24);
  return (mine - theirs).abs() / unit;
}

// A weight that we and LibTorch update beside each other for 100 steps with the same gradients.
class Race {
 public:
  explicit Race(const Optimizer& optimizer) : optimizer_(optimizer) {
    for (at::Tensor& moment : moments_) moment = at::zeros({kCount});
    moments_[0].fill_(first_moment(optimizer));
  }

  // `reset`: each step starts from LibTorch's weight.
  void run(bool reset) {
    for (std::int64_t step = 1; step <= 100; ++step) {
      const at::Tensor gradient = numbers(1 + step, {kCount});
      if (reset) mine_.copy_(theirs_.detach());
      theirs_.mutable_grad() = gradient.clone();
      torchs_->step();
      run_on_host(Update{optimizer_,
                         {.lr = learning_rate(optimizer_), .step = step},
                         {.main = mine_.data_ptr(),
                          .gradient = gradient.data_ptr(),
                          .moments = {moments_[0].data_ptr(), moments_[1].data_ptr(), moments_[2].data_ptr()},
                          .count = kCount}});
      largest_ = at::maximum(largest_, theirs_.detach().abs());
      furthest_ = at::maximum(furthest_, units_apart(mine_, theirs_.detach(), largest_));
    }
  }

  double furthest() const { return furthest_.max().item<double>(); }
  double apart_on_average() const { return units_apart(mine_, theirs_.detach(), largest_).mean().item<double>(); }

 private:
  static constexpr std::int64_t kCount = 4099;
  Optimizer optimizer_;
  at::Tensor mine_ = numbers(1, {kCount});
  at::Tensor theirs_ = mine_.clone().requires_grad_(true);
  std::unique_ptr<torch::optim::Optimizer> torchs_ = torch_optimizer({theirs_}, {{optimizer_}});
  std::array<at::Tensor, kMaxMoments> moments_;
  at::Tensor largest_ = mine_.abs();
  at::Tensor furthest_ = at::zeros({kCount});
};

// Whether LibTorch's sum of a tensor and a scaled one rounds once: its kernels for the least processors round twice.
bool torch_fuses() {
  constexpr double factor = 1 + 0x1p-12;
  return at::add(at::full({64}, -1.0F), at::full({64}, factor), factor).equal(at::full({64}, 0x1p-11 + 0x1p-24));
}

// LibTorch's root is not always rounded to the nearest, ours is; all else is the same to the bit where it fuses. A unit
// of a root is up to two of a step, and of the weight where the step is the larger part of it.
TEST(OptimizersAndTorch, AreTheSameForARootsLastUnitIn100Steps) {
  const bool fuses = torch_fuses();
  for (const Optimizer& optimizer : every_optimizer()) {
    SCOPED_TRACE(describe(optimizer));
    const bool rootless = std::holds_alternative<Sgd>(optimizer) || std::holds_alternative<Lion>(optimizer);
    const bool same = fuses && rootless;
    Race together(optimizer), apart(optimizer);
    together.run(/*reset=*/true);
    EXPECT_LE(together.furthest(), same ? 0 : 4);
    apart.run(/*reset=*/false);
    EXPECT_LE(apart.apart_on_average(), same ? 0 : fuses ? 0.5 : 1);
    EXPECT_TRUE(!same || apart.furthest() == 0);
  }
}

TEST(OptimizerGroups, MixOptimizersUnderEveryPlan) {
  const auto vectors = [](const ParameterInfo& info) { return info.shape.size() == 1; };
  Job job{.ranks = 3, .optimizer = Sgd{.lr = 0.1}, .steps = kSteps};
  job.options.groups = {{.takes = vectors, .lr_scale = 0.5, .optimizer = AdamW{.lr = 2e-3, .eps = 1e-4}},
                        {.takes = [](const ParameterInfo& info) { return info.embedding; }, .optimizer = Lion{}}};
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    job.plan = Plan::ddp().precision(precision);
    const Outcome ddp = train<Lm>(job);
    under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(ddp, train<Lm>(each)), ""); });
  }
}

TEST(OptimizerGroups, HoldTheBytesEstimated) {
  const auto vectors = [](const ParameterInfo& info) { return info.shape.size() == 1; };
  Job job{.ranks = 3, .optimizer = Lion{}};
  job.options.groups = {{.takes = vectors, .optimizer = AdamW{}}};
  under_every_plan(job, [](const Job& each) {
    std::mutex mutex;
    std::int64_t most = 0, estimated = 0;
    on_ranks<Lm>(each, {}, [&](Lm& model, Engine& engine, int) {
      train_step(model, engine);
      const std::lock_guard lock(mutex);
      most = std::max(most, engine.ledger()[Owner::optimizer].bytes);
      estimated = engine.estimate().state.optimizer;
    });
    EXPECT_EQ(most, estimated);
  });
}

TEST(OptimizerGroups, MustBeTheSameOnEveryRank) {
  try {
    const auto rank = [](const World& world) {
      Lm model;
      Engine engine(model, world, Plan::zero3(), AdamW{.lr = world.rank() == 0 ? 1e-3 : 2e-3});
    };
    run_ranks(2, rank, kToDisagree);
    FAIL();
  } catch (const RankError& error) {
    EXPECT_NE(std::string(error.what()).find("lr 0.002"), std::string::npos) << error.what();
  }
}

// What two ranks with a schedule each are told; empty where they train.
std::string told_of(const Schedule& first, const Schedule& second) {
  try {
    const auto rank = [&](const World& world) {
      Lm model;
      Options options;
      options.schedule = world.rank() == 0 ? first : second;
      Engine engine(model, world, Plan::ddp(), AdamW{}, options);
    };
    run_ranks(2, rank, kToDisagree);
    return "";
  } catch (const RankError& error) {
    return error.what();
  }
}

TEST(Schedules, MustBeTheSameOnEveryRank) {
  const auto finds = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  const Schedule cosine = cosine_schedule({2, 20});
  EXPECT_TRUE(finds(told_of(cosine, {}), "rank 1 has no schedule"));
  EXPECT_TRUE(finds(told_of(cosine, linear_schedule({2, 20})), "on the learning rate at step 3"));
  // Alike as long as they warm up.
  EXPECT_TRUE(finds(told_of(cosine_schedule({2, 2000}), cosine_schedule({2, 3000})), "at step 3"));
  const std::vector<double> factors{1, 0.5, 0.25};
  const Schedule table = [&](std::int64_t step) { return factors.at(static_cast<std::size_t>(step)); };
  EXPECT_TRUE(finds(told_of(table, constant_schedule()), "a factor of 0.5 on the learning rate at step 1"));
  EXPECT_EQ(told_of(table, table), "");
}

}  // namespace zero::test::optimizers_test

// Meshes: state sharded inside groups of ranks and replicated across them, with the bits of one group.
#include <torch/torch.h>

#include "covering.h"
#include "lm.h"
#include "optimizers.h"

namespace zero::test::hybrid_test {

struct Groups {
  int ranks;
  int shard;  // of a group
};

bool has_bits_of_one_group(const Groups& groups) {
  return groups.shard % 3 != 0;
}

Job job_of(const Plan& plan, const Groups& groups, const Optimizer& optimizer = AdamW{.lr = 1e-2}) {
  return {.plan = plan,
          .ranks = groups.ranks,
          .optimizer = optimizer,
          .options = {.clip = 0.5, .groups = {no_decay_on_norms_biases_embeddings()}},
          .shard = groups.shard};
}

// What every plan on the mesh is to give: the flat plan's bits where a group is a subtree of every sum. With
// accumulation plans that reduce each micro-batch add up in another order than those that reduce their sum, as a plan
// does whose gradients are sharded over groups of one rank: not at all.
Outcome expected(const Plan& plan, const Groups& groups, const Optimizer& optimizer,
                 const Course<Lm>& course = lm_with_dropout(0.2)) {
  const MeshShape mesh(groups.ranks, {.shard = groups.shard});
  const bool reduces_sum = plan.on(mesh)[State::gradient].between == Placement::partial;
  Plan flat = (reduces_sum || plan.accumulate() == 1 ? Plan::ddp() : Plan::zero2())
                  .precision(plan.precision())
                  .accumulate(plan.accumulate());
  if (plan.reduction()) flat = flat.reduce_in(*plan.reduction());
  Job job = job_of(flat, groups, optimizer);
  if (has_bits_of_one_group(groups)) job.shard = 0;
  return train<Lm>(job, course);
}

std::string title_of_groups(const Groups& groups) {
  return std::to_string(groups.ranks) + "InGroupsOf" + std::to_string(groups.shard);
}

const std::vector<Groups> kMeshes{{4, 2}, {6, 2}, {6, 3}, {3, 1}};

// Mesh, micro-batches a step, precision, plan.
class Hybrid : public testing::TestWithParam<std::tuple<Groups, int, Precision, Plan>> {};

TEST_P(Hybrid, HasTheBitsOfEveryOtherPlan) {
  const auto& [groups, accumulate, precision, preset] = GetParam();
  const Plan plan = preset.precision(precision).accumulate(accumulate);
  const Optimizer optimizer = AdamW{.lr = 1e-2};
  EXPECT_EQ(
      difference(expected(plan, groups, optimizer), train<Lm>(job_of(plan, groups, optimizer), lm_with_dropout(0.2))),
      "");
}

std::string title_of_hybrid(const testing::TestParamInfo<Hybrid::ParamType>& tested) {
  const auto& [groups, accumulate, precision, plan] = tested.param;
  return in_title(groups.ranks, accumulate, precision) + "InGroupsOf" + std::to_string(groups.shard) +
         in_title(plan.label());
}

INSTANTIATE_TEST_SUITE_P(All, Hybrid,
                         testing::ValuesIn(covering(kMeshes, std::vector{1, 2, 3},
                                                    std::vector{Precision::fp32, Precision::bf16, Precision::fp16,
                                                                Precision::bf16_sr},
                                                    plans_of_meshes())),
                         title_of_hybrid);

// Which optimizer, mesh, plan.
class HybridOptimizers : public testing::TestWithParam<std::tuple<std::size_t, Groups, Plan>> {
 protected:
  static std::vector<Optimizer> all() {
    std::vector<Optimizer> optimizers = whole_optimizers();
    for (const Optimizer& each : narrow_moments()) optimizers.push_back(each);
    return optimizers;
  }

 public:
  static std::vector<std::size_t> numbers() {
    std::vector<std::size_t> numbers(all().size());
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
    return numbers;
  }
};

TEST_P(HybridOptimizers, HaveTheBitsOfEveryOtherPlan) {
  const auto& [which, groups, preset] = GetParam();
  const Optimizer optimizer = all()[which];
  const Plan plan = preset.bf16();
  EXPECT_EQ(difference(expected(plan, groups, optimizer, {}), train<Lm>(job_of(plan, groups, optimizer))), "");
}

std::string title_of_optimizers(const testing::TestParamInfo<HybridOptimizers::ParamType>& tested) {
  const auto& [which, groups, plan] = tested.param;
  return std::to_string(which) + "On" + title_of_groups(groups) + in_title(plan.label());
}

INSTANTIATE_TEST_SUITE_P(All, HybridOptimizers,
                         testing::ValuesIn(covering(HybridOptimizers::numbers(), kMeshes,
                                                    std::vector{Plan::hybrid(), Plan::hybrid_zero2()})),
                         title_of_optimizers);

class HybridSettings : public testing::TestWithParam<Plan> {
 protected:
  static Outcome trained(const Plan& plan) { return train<Lm>(job_of(plan, {4, 2}), lm_with_dropout(0.2)); }
};

TEST_P(HybridSettings, ReproducibleSumsAreThoseOfOneRank) {
  const Plan plan = GetParam().reproducible(true).accumulate(2);
  Job one = job_of(Plan::ddp().reproducible(true).accumulate(8), {1, 0});
  EXPECT_EQ(difference(train<Lm>(one, lm_with_dropout(0.2)), trained(plan)), "");
}

TEST_P(HybridSettings, GradientsRoundedOnTheirWayAreSo) {
  const Plan plan = GetParam().reduce_in(Dtype::bf16);
  EXPECT_EQ(difference(expected(plan, {4, 2}, AdamW{.lr = 1e-2}), trained(plan)), "");
}

TEST_P(HybridSettings, ParametersInCodesAreThoseOfOneGroup) {
  Job flat = job_of(Plan::zero3().gather_in(Wire::fp8), {4, 0});
  EXPECT_EQ(difference(train<Lm>(flat, lm_with_dropout(0.2)), trained(GetParam().gather_in(Wire::fp8))), "");
}

// Ranks, and groups, that use different units: gathers are settled within a group, whatever the others do.
struct Routed : torch::nn::Module {
  Routed() : head(register_module("head", torch::nn::Linear(6, 5))) {
    for (int i = 0; i < 5; ++i) experts->push_back(torch::nn::Linear(6, 6));
    register_module("experts", experts);
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor x = numbers(index, {4, 6});
    for (std::int64_t i = 0; i < 5; ++i)
      if (((index * 7 + 3) >> i) & 1) x = experts[static_cast<std::size_t>(i)]->as<torch::nn::Linear>()->forward(x);
    return head(x).logsumexp(1).mean();
  }

  torch::nn::ModuleList experts;
  torch::nn::Linear head;
};

TEST_P(HybridSettings, UnitsThatSomeRanksDoNotUseAreServed) {
  Job job{.plan = GetParam().resident_budget(1).accumulate(2), .ranks = 6, .steps = 4, .shard = 2};
  Job flat = job;
  flat.plan = Plan::zero3().accumulate(2);
  flat.shard = 0;
  EXPECT_EQ(difference(train<Routed>(flat), train<Routed>(job)), "");
}

// What is written inside a scope reaches every replica, and what is read is whole.
TEST_P(HybridSettings, ScopesSeeAndChangeEveryReplica) {
  for (const std::optional<int> root : {std::optional<int>(), std::optional<int>(3)})
    on_ranks<Lm>(job_of(GetParam().bf16(), {4, 2}), {}, [&](Lm& model, Engine& engine, int rank) {
      train_step(model, engine);
      const at::NoGradGuard no_grad;
      {
        const auto scope = gather(model.parameters(), root);
        model.norm->weight.fill_(root ? static_cast<double>(rank) : 0.25);
      }
      const double written = root ? 3 : 0.25;
      EXPECT_TRUE(engine.main_parameter(model.norm->weight).eq(written).all().item<bool>());
      EXPECT_TRUE((model.norm->weight * 1).eq(written).all().item<bool>());
      const std::vector<double> sums = [&] {
        const auto scope = gather(model.parameters());
        std::vector<double> all;
        for (const at::Tensor& parameter : model.parameters())
          all.push_back(parameter.to(at::kDouble).sum().item<double>());
        return all;
      }();
      engine.release();
      for (std::size_t i = 0; i < sums.size(); ++i)
        EXPECT_EQ(model.parameters()[i].to(at::kBFloat16).to(at::kDouble).sum().item<double>(), sums[i]) << i;
    });
}

// Within its group what each wants; the others that these have failed.
TEST_P(HybridSettings, RanksThatDivergeAreTold) {
  for (const int straggler : {0, 3}) {
    std::vector<std::string> told(4);
    run_ranks(4, [&](const World& world) {
      told[static_cast<std::size_t>(world.rank())] = thrown_by([&] {
        const auto model = std::make_shared<Lm>();
        Engine engine(*model, Mesh(world, {.shard = 2}), GetParam().bf16(), AdamW{});
        engine.backward(model->loss(engine.micro_batch()));
        if (world.rank() == straggler) {
          static_cast<void>(engine.main_parameter(model->norm->weight));
        } else {
          engine.step();
        }
      });
    });
    for (int rank = 0; rank < 4; ++rank) {
      const std::string& text = told[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(says(text, {"rank " + std::to_string(rank)}));
      if (rank / 2 != straggler / 2) continue;
      EXPECT_TRUE(says(text, {"the ranks called different operations", "rank " + std::to_string(straggler) + " wants",
                              "to take a step"}));
    }
  }
}

TEST_P(HybridSettings, MeshesThatDifferAreRefused) {
  const std::string told = thrown_by([&] {
    run_ranks(
        4,
        [&](const World& world) {
          const auto model = std::make_shared<Lm>();
          const Mesh flat(world), groups(world, {.shard = 2});
          Engine engine(*model, world.rank() == 1 ? flat : groups, GetParam(), AdamW{});
        },
        kToDisagree);
  });
  EXPECT_TRUE(says(told, {"4 ranks (2 replica x 2 shard)"}));
}

INSTANTIATE_TEST_SUITE_P(All, HybridSettings, testing::Values(Plan::hybrid(), Plan::hybrid_zero2()),
                         [](const auto& tested) { return in_title(tested.param.label()); });

TEST(HybridState, IsThatOfAGroupOrOfAllRanks) {
  for (const Plan& plan : {Plan::hybrid(), Plan::hybrid_zero2()})
    on_ranks<Lm>(job_of(plan, {6, 3}), {}, [&](Lm&, Engine& engine, int) {
      const Ledger ledger = engine.ledger();
      std::int64_t whole = 0;
      for (const UnitLayout& unit : engine.layout().units())
        if (unit.trainable()) whole += unit.length();
      EXPECT_EQ(ledger[Owner::optimizer].bytes, 2 * whole * 4 / (plan == Plan::hybrid() ? 3 : 6));
    });
}

TEST(Meshes, JoinTheRanksAlongEachAxis) {
  run_ranks(12, [](const World& world) {
    const Mesh mesh(world, {.shard = 2, .tensor = 3});
    EXPECT_EQ(mesh.shape().text(), "12 ranks (2 replica x 2 shard x 3 tensor)");
    const auto sum_along = [&](Axis axis) {
      std::int64_t sum = world.rank();
      mesh[axis].all_reduce({&sum, 1, Dtype::i64}).wait();
      return sum;
    };
    const std::int64_t tensor = world.rank() % 3, replica = world.rank() / 6, shard = world.rank() / 3 % 2;
    EXPECT_EQ(mesh.rank(Axis::tensor), tensor);
    EXPECT_EQ(mesh.rank(Axis::replica), replica);
    EXPECT_EQ(mesh.rank(Axis::shard), shard);
    EXPECT_EQ(mesh.rank(Axis::data), 2 * replica + shard);
    EXPECT_EQ(mesh[Axis::pipe].size(), 1);
    EXPECT_EQ(sum_along(Axis::tensor), 3 * (world.rank() - tensor) + 3);
    EXPECT_EQ(sum_along(Axis::shard), 2 * (6 * replica + tensor) + 3);
    EXPECT_EQ(sum_along(Axis::replica), 2 * (3 * shard + tensor) + 6);
    EXPECT_EQ(sum_along(Axis::data), 4 * tensor + 18);
  });
}

TEST(Meshes, AreRefusedWhereTheyAreNoGrid) {
  run_ranks(6, [](const World& world) {
    EXPECT_TRUE(says(thrown_by([&] { Mesh(world, {.shard = 4}); }), {"6 ranks are not a multiple of 4"}));
    EXPECT_TRUE(says(thrown_by([&] { Mesh(world, {.shard = -1, .pipe = 0}); }), {"not -1", "not 0"}));
    const Mesh tensors(world, {.tensor = 2});
    const auto model = std::make_shared<Lm>();
    EXPECT_TRUE(says(thrown_by([&] { Engine(*model, tensors, Plan::ddp(), AdamW{}); }), {"2 tensor", "1 rank"}));
    const Mesh groups(world, {.shard = 3});
    EXPECT_TRUE(says(thrown_by([&] { Engine(*model, groups, Plan::hybrid().reproducible(true), AdamW{}); }),
                     {"a power of two of ranks, not 3"}));
  });
}

}  // namespace zero::test::hybrid_test

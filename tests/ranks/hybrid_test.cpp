// Meshes: state sharded inside groups of ranks and replicated across them.
#include <torch/torch.h>

#include "lm.h"

namespace zero::test::hybrid_test {

class HybridSettings : public testing::TestWithParam<Plan> {};

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

// A table without a name: gradients that are added up first, and are held by groups once they are reduced.
TEST(HybridTables, MayHoldSumsBetweenMicroBatches) {
  Job job{.plan = Plan::hybrid().accumulate(2), .ranks = 4, .steps = 4, .shard = 2};
  job.plan[State::gradient].between = Placements::over_data(Placement::partial);
  Job flat = job;
  flat.plan = Plan::ddp().accumulate(2);
  flat.shard = 0;
  EXPECT_EQ(difference(train<Routed>(flat), train<Routed>(job)), "");
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

INSTANTIATE_TEST_SUITE_P(All, HybridSettings,
                         testing::Values(Plan::hybrid(), Plan::hybrid_zero2(),
                                         Plan::zero3().keep_gathered(KeptCopy::shard),
                                         Plan::zero3().keep_gathered(KeptCopy::host)),
                         [](const auto& tested) { return in_title(tested.param.label()); });

TEST(HybridState, IsThatOfAGroupOrOfAllRanks) {
  for (const Plan& plan : {Plan::hybrid(), Plan::hybrid_zero2()})
    on_ranks<Lm>({.plan = plan, .ranks = 6, .shard = 3}, {}, [&](Lm&, Engine& engine, int) {
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
    EXPECT_TRUE(says(thrown_by([&] { Engine(*model, tensors, Plan::ddp(), AdamW{}); }),
                     {"2 tensor", "Options::tensor takes no parameter"}));
  });
}

}  // namespace zero::test::hybrid_test

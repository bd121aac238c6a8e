// Engines of one module, one after another, each of which the one before gave the module back; and two at once.
#include <algorithm>

#include "covering.h"
#include "familiar_programs.h"
#include "folder.h"
#include "zero/error.h"

namespace zero::test::successive_engines_test {

at::Tensor loss_of(Regressor& net, const Batch& batch) {
  return torch::mse_loss(net->forward(batch.first).to(at::kFloat), batch.second);
}

// A rate that moves most weights by less than a step of their 16 bits.
Outcome trained(const Plan& plan, int ranks, int engines) {
  constexpr int steps = 4;
  return run_of(
      [&](const World& world, const Plan& by, int data_of) {
        auto net = begun<Regressor>();
        const Batches data = batches(data_of, 6, 3, steps);
        Options options;
        if (by.compute_dtype() == Dtype::f16) options.loss_scale = LossScale::fixed(1);
        for (int engine = 0; engine < engines; ++engine) {
          Engine each(*net, world, by, Sgd{.lr = 1e-4}, options);
          for (int step = 0; step < steps / engines; ++step) {
            each.backward(loss_of(net, data[static_cast<std::size_t>(engine * steps / engines + step)]));
            EXPECT_TRUE(each.step().applied);
          }
          each.release();
        }
        return left_by({{"", net.get()}});
      },
      plan, ranks, false);
}

// To the bit, and the weights have moved.
TEST(SuccessiveEngines, LoseNothingInSixteenBits) {
  const Outcome first = left_by({{"", begun<Regressor>().get()}});
  for (const Precision precision : {Precision::bf16, Precision::fp16, Precision::bf16_kahan})
    for (const int ranks : {1, 2})
      for (const Plan& plan : plans_of_meshes()) {
        SCOPED_TRACE(plan.label() + " " + std::string(name(precision)) + " on " + std::to_string(ranks));
        const Outcome one = trained(plan.precision(precision), ranks, 1);
        EXPECT_EQ(difference(one, trained(plan.precision(precision), ranks, 4)), "");
        EXPECT_FALSE(one.parameters.at("head.weight").equal(first.parameters.at("head.weight")));
        EXPECT_EQ(one.parameters.at("head.weight").scalar_type(), at::kFloat);
      }
}

// In the dtypes that they had, or as they were computed with.
TEST(SuccessiveEngines, GetParametersInTheDtypesThatTheyHad) {
  for (const Plan& plan : all_plans())
    for (const ReleaseAs as : {ReleaseAs::given, ReleaseAs::computed})
      run_ranks(2, [&](const World& world) {
        auto net = begun<Regressor>();
        net->head->to(at::kBFloat16);
        const at::Tensor body = net->body->parameters()[0], head = net->head->weight;
        Engine engine(*net, world, plan.bf16(), AdamW{.lr = 1e-2});
        engine.backward(net->forward(numbers(world.rank(), {5, 6})).to(at::kFloat).square().mean());
        engine.step();
        const at::Tensor main = engine.main_parameter(body), of_head = engine.main_parameter(head);
        engine.release(as);
        EXPECT_EQ(head.scalar_type(), at::kBFloat16);
        EXPECT_TRUE(head.equal(of_head.to(at::kBFloat16)));
        EXPECT_EQ(body.scalar_type(), as == ReleaseAs::given ? at::kFloat : at::kBFloat16);
        EXPECT_TRUE(body.equal(main.to(body.scalar_type())));
        EXPECT_EQ(body.equal(main), as == ReleaseAs::given);
      });
}

// One sentence for all parameters.
TEST(TwoEnginesOfOneModule, AreToldOfInASentence) {
  run_ranks(2, [](const World& world) {
    auto net = begun<Regressor>();
    Engine engine(*net, world, Plan::zero3(), AdamW{});
    const std::string fault = thrown_by([&] { Engine second(*net, world, Plan::zero3(), AdamW{}); });
    EXPECT_TRUE(says(fault, {"each of 8 parameters, 'body.0.weight', 'body.0.bias'", "and others", "release()"}));
    EXPECT_EQ(std::ranges::count(fault, '\n'), 1);
    engine.backward(loss_of(net, batches(world.rank(), 6, 3)[0]));
    EXPECT_TRUE(engine.step().applied);
  });
}

// What a rank says that it wants is the call that it made.
TEST(DifferentCalls, AreNamed) {
  const Folder folder;
  const auto told = [&](const std::function<void(Engine&)>& on_rank_0) {
    std::string said;
    run_ranks(
        2,
        [&](const World& world) {
          auto net = begun<Regressor>();
          Engine engine(*net, world, Plan::zero2().bf16(), AdamW{});
          engine.backward(loss_of(net, batches(world.rank(), 6, 3)[0]));
          engine.step();
          const std::string fault = thrown_by([&] {
            if (world.rank() == 0) return on_rank_0(engine);
            engine.main_parameter(net->head->weight);
          });
          if (world.rank() == 0) said = fault;
        },
        kToDisagree);
    return said;
  };
  EXPECT_TRUE(
      says(told([&](Engine& engine) { engine.save(folder.path()); }), {"rank 0 wants", "to save a checkpoint;"}));
  EXPECT_TRUE(says(told([&](Engine& engine) { engine.load(folder.path()); }), {"rank 0 wants", "to load a state;"}));
}

}  // namespace zero::test::successive_engines_test

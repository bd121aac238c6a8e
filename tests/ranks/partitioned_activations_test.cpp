// Inputs of checkpointed layers of which each rank of a tensor axis keeps a slice (P_a).
#include <torch/torch.h>

#include <algorithm>

#include "gpt.h"
#include "harness.h"

namespace zero::test::partitioned_activations_test {

// Layers that are computed again in backward, from inputs of which each rank keeps a part.
struct Checkpointed : Gpt {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {2, 7}, kVocabulary);
    at::Tensor hidden = words(ids.slice(1, 0, 6));
    inputs.clear();
    for (const auto& block : *blocks) {
      inputs.push_back(hidden.storage().getWeakStorageImpl());
      hidden = checkpoint(std::dynamic_pointer_cast<GptBlockImpl>(block.ptr()), hidden);
    }
    const at::Tensor logits = torch::nn::functional::linear(norm(hidden), words->weight);
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.slice(1, 1).flatten());
  }
  // Of checkpoints: whose memory is still there.
  std::int64_t kept() const {
    return std::ranges::count_if(inputs, [](const auto& each) { return !each.expired(); });
  }
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> inputs;
};

TEST(PartitionedActivations, HaveTheBitsOfWholeOnes) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const bool sequence : {false, true})
      for (const auto& [data, tensor] : {std::pair(1, 2), std::pair(2, 2), std::pair(1, 4)}) {
        Job whole = cut_job({.plan = Plan::zero3().precision(precision), .ranks = data, .steps = 3}, tensor);
        whole.options.sequence_parallel = sequence && tensor == 2;
        Job sliced = whole;
        sliced.options.partition_activations = true;
        const Outcome expected = train<Checkpointed>(whole);
        EXPECT_EQ(difference(expected, train<Checkpointed>(sliced)), "") << describe(sliced);
        if (precision != Precision::fp32 || whole.options.sequence_parallel) continue;
        const Job plain{.plan = whole.plan, .ranks = data, .steps = 3};
        EXPECT_EQ(difference(train<Gpt>(plain), expected, 1e-5), "");
      }
}

// Each checkpoint's input is gathered once; so little is kept of it.
TEST(PartitionedActivations, AreGatheredOnceEach) {
  constexpr std::int64_t layers = 2, hidden = 2 * 6 * GptBlockImpl::kSize * 4;  // bytes
  std::int64_t moved[2] = {}, kept[2] = {};
  for (const bool partition : {false, true}) {
    Job job = cut_job({.plan = Plan::zero3(), .ranks = 1}, 2);
    job.options.partition_activations = partition;
    on_ranks<Checkpointed>(job, {}, [&](Checkpointed& model, Engine& engine, int rank) {
      train_step(model, engine);
      engine.reset_traffic();
      const at::Tensor loss = model.loss(engine.micro_batch());
      if (rank == 0) kept[partition] = model.kept();
      engine.backward(loss);
      engine.step();
      if (rank == 0) moved[partition] = engine.tensor_traffic().bytes();
    });
  }
  EXPECT_EQ(moved[1] - moved[0], layers * hidden / 2);
  EXPECT_EQ(kept[0], layers);
  EXPECT_EQ(kept[1], 0);
}

// Two engines on one thread: the inputs of one that has no such axis are its ranks' own.
TEST(PartitionedActivations, AreThoseOfTheAxisAlone) {
  const auto run = [](bool partition) {
    std::vector<double> losses;
    run_ranks(2, [&](const World& world) {
      Mesh mesh(world, {.tensor = 2});
      Gpt cut;
      Checkpointed plain;
      cut.to(device_of_rank());
      plain.to(device_of_rank());
      initialise(cut, kSeed);
      initialise(plain, kSeed);
      Options options{.tensor = kCut, .partition_activations = partition};
      Engine with(cut, mesh, Plan::zero3(), AdamW{}, options);
      Engine without(plain, world, Plan::zero3(), AdamW{});
      for (int step = 0; step < 2; ++step) {
        with.backward(cut.loss(step));
        without.backward(plain.loss(without.micro_batch()));
        with.step();
        const double loss = without.step().loss;
        if (world.rank() == 0) losses.push_back(loss);
      }
    });
    return losses;
  };
  EXPECT_EQ(run(true), run(false));
}

}  // namespace zero::test::partitioned_activations_test

// Data through LibTorch's loaders.
#include <torch/torch.h>

#include <sstream>

#include "harness.h"
#include "zero/sampler.h"

namespace zero::test::sampler_test {

using Indices = std::vector<std::size_t>;

// Whose samples are their own numbers.
struct Numbered : torch::data::datasets::Dataset<Numbered, torch::data::TensorExample> {
  explicit Numbered(std::size_t count) : count_(count) {}
  torch::data::TensorExample get(std::size_t index) override {
    return at::full({1}, static_cast<std::int64_t>(index), at::kLong);
  }
  std::optional<std::size_t> size() const override { return count_; }

 private:
  std::size_t count_;
};

auto loader_of(const DistributedSampler& sampler, std::size_t workers = 0) {
  const auto batch = static_cast<std::size_t>(sampler.samples().options().batch);
  return torch::data::make_data_loader(Numbered(static_cast<std::size_t>(sampler.samples().size()))
                                           .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
                                       sampler, torch::data::DataLoaderOptions(batch).workers(workers));
}

Indices indices_of(const torch::data::TensorExample& batch) {
  const at::Tensor values = batch.data.contiguous();
  return {values.const_data_ptr<std::int64_t>(), values.const_data_ptr<std::int64_t>() + values.numel()};
}

template <class Loader>
std::vector<Indices> epoch_of(Loader& loader) {
  std::vector<Indices> batches;
  for (const auto& batch : *loader) batches.push_back(indices_of(batch));
  return batches;
}

// The micro-batches of a rank from its k-th on, in an epoch, but for those without samples.
std::vector<Indices> expected_of(const Samples& samples, std::int64_t epoch, std::int64_t k = 0) {
  std::vector<Indices> batches;
  for (; samples.place(samples.number(k)).epoch <= epoch; ++k)
    if (samples.place(samples.number(k)).epoch == epoch && samples.weight(samples.number(k)) > 0)
      batches.push_back(samples.indices(samples.number(k)));
  return batches;
}

Samples samples_of(int ranks, int rank, LastBatch last, int accumulate = 2) {
  return {21, MeshShape(ranks), rank, Plan::zero2().accumulate(accumulate), {.batch = 2, .seed = 4, .last = last}};
}

TEST(Samplers, GiveLoadersTheMicroBatchesOfTheirRank) {
  for (const LastBatch last : {LastBatch::pad, LastBatch::drop, LastBatch::uneven})
    for (int rank = 0; rank < 3; ++rank)
      for (const std::size_t workers : {0UL, 2UL}) {
        const DistributedSampler sampler(samples_of(3, rank, last));
        auto loader = loader_of(sampler, workers);
        for (std::int64_t epoch = 0; epoch < 3; ++epoch)
          EXPECT_EQ(epoch_of(loader), expected_of(sampler.samples(), epoch));
      }
}

TEST(Samplers, GoOnAtAMicroBatchInTheMiddleOfAnEpoch) {
  for (int rank = 0; rank < 2; ++rank) {
    const Samples samples = samples_of(2, rank, LastBatch::uneven);  // three steps an epoch
    DistributedSampler sampler(samples);
    sampler.go_on(samples.number(8));  // the second step of the second epoch
    auto loader = loader_of(sampler);
    EXPECT_EQ(epoch_of(loader), expected_of(samples, 1, 8));
    EXPECT_EQ(epoch_of(loader), expected_of(samples, 2));
  }
}

TEST(Samplers, LeaveWhatIsLeftOfAnEpoch) {
  DistributedSampler sampler(samples_of(2, 1, LastBatch::pad));
  const std::vector<Indices> second = expected_of(sampler.samples(), 1);
  EXPECT_TRUE(sampler.next(2));
  sampler.reset();
  for (const Indices& batch : second) EXPECT_EQ(sampler.next(2), batch);
  EXPECT_FALSE(sampler.next(2));
  EXPECT_FALSE(sampler.next(2));
  sampler.reset();
  sampler.reset();
  EXPECT_TRUE(sampler.next(2));
}

TEST(Samplers, AreSavedAndLoadedOnAnotherNumberOfRanks) {
  std::stringstream stream;
  DistributedSampler before(samples_of(2, 1, LastBatch::uneven));
  for (int k = 0; k < 2; ++k) EXPECT_TRUE(before.next(2));  // one step: eight samples
  torch::save(before, stream);
  Indices left;
  for (int rank = 0; rank < 3; ++rank) {
    DistributedSampler after(samples_of(3, rank, LastBatch::uneven, 1));
    stream.seekg(0);
    torch::load(after, stream);
    after.reset();
    while (const auto batch = after.next(2)) left.insert(left.end(), batch->begin(), batch->end());
    after.reset();
    EXPECT_EQ(after.next(2), samples_of(3, rank, LastBatch::uneven, 1).indices(4 * 3 + rank));
  }
  const Samples one(21, MeshShape(1), 0, Plan::ddp(), {.batch = 21, .seed = 4});
  Indices expected = one.indices(0);
  expected.erase(expected.begin(), expected.begin() + 8);
  std::ranges::sort(expected);
  std::ranges::sort(left);
  EXPECT_EQ(left, expected);
  stream.seekg(0);
  DistributedSampler other(Samples(22, MeshShape(1), 0, Plan::ddp()));
  EXPECT_TRUE(says(thrown_by([&] { torch::load(other, stream); }), {"size 21", "22"}));
}

TEST(Samplers, RefuseBatchesOfAnotherSize) {
  DistributedSampler sampler(samples_of(2, 0, LastBatch::pad));
  EXPECT_TRUE(says(thrown_by([&] { sampler.next(3); }), {"3 samples", "micro-batches of 2"}));
  EXPECT_THROW(sampler.reset(22), ConfigError);
  EXPECT_NO_THROW(sampler.reset(21));
}

// A layer over rows that depend on the sample.
struct Rows : torch::nn::Module {
  Rows() : layer(register_module("layer", torch::nn::Linear(6, 3))) {}
  at::Tensor loss(const Indices& samples) {
    std::vector<at::Tensor> rows;
    for (const std::size_t sample : samples) rows.push_back(numbers(static_cast<std::int64_t>(sample), {6}));
    return layer(at::stack(rows)).logsumexp(1).mean();
  }
  torch::nn::Linear layer;
};

// A run that stops in the middle of an epoch and goes on from its checkpoint has the bits of one that does not, by
// loaders, and those of a loop that asks for each micro-batch's samples.
TEST(Samplers, KeepInStepWithTheEngine) {
  for (const Plan& plan : {Plan::zero1().accumulate(2), Plan::zero3().accumulate(2)}) {
    const Job job{.plan = plan, .ranks = 2, .steps = 7};
    const auto make = [] { return std::make_shared<Rows>(); };
    const auto samples = [&](int rank) {
      return Samples(21, MeshShape(2), rank, plan, {.batch = 2, .seed = 4, .last = LastBatch::pad});
    };
    const Outcome asked = train_by_loop(job, make, [&](auto& module, Engine& engine, Outcome& run, int rank) {
      for (int step = 0; step < job.steps; ++step) {
        for (int micro = 0; micro < 2; ++micro)
          engine.backward(static_cast<Rows&>(module).loss(samples(rank).indices(engine.micro_batch())));
        run.record(engine.step());
      }
    });
    const Outcome loaded = train_by_loop(job, make, [&](auto& module, Engine& engine, Outcome& run, int rank) {
      while (engine.steps() < job.steps) {
        DistributedSampler sampler(samples(rank));
        sampler.go_on(engine.micro_batch());
        auto loader = loader_of(sampler, 1);
        const std::int64_t stop = engine.steps() + 2;  // in the middle of an epoch, the loader being ahead
        for (const auto& batch : *loader) {
          engine.backward(static_cast<Rows&>(module).loss(indices_of(batch)));
          if (const StepReport report = engine.step(); report.applied) run.record(report);
          if (engine.steps() == stop || engine.steps() == job.steps) break;
        }
      }
    });
    EXPECT_EQ(difference(asked, loaded), "");
  }
}

}  // namespace zero::test::sampler_test

// Batch normalisation over the batches of all ranks, against one process that has them all.
#include <torch/torch.h>

#include "harness.h"
#include "zero/collectives.h"
#include "zero/sync_batch_norm.h"

namespace zero::test::sync_batch_norm_test {

using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm3d;

// What a layer makes of a batch, and of the gradient of a loss that weighs each output differently. In the host's
// memory.
struct Passed {
  at::Tensor y, dx, dweight, dbias, mean, variance;
};

at::Tensor defined_or_zero(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.cpu().clone() : at::zeros({});
}

template <class Layer>
Passed pass(Layer& layer, const at::Tensor& batch, const at::Tensor& weights) {
  const at::Device where = (layer->weight.defined() ? layer->weight : layer->running_mean).device();
  const at::Tensor x = batch.to(where, batch.scalar_type(), /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  const at::Tensor y = layer->forward(x);
  (y * weights.to(where)).sum().backward();
  return {y.detach().cpu(),
          x.grad().cpu(),
          defined_or_zero(layer->weight.defined() ? layer->weight.grad() : at::Tensor()),
          defined_or_zero(layer->bias.defined() ? layer->bias.grad() : at::Tensor()),
          defined_or_zero(layer->running_mean),
          defined_or_zero(layer->running_var)};
}

bool near(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && at::allclose(a, b, tolerance, tolerance);
}

template <class Layer>
Layer made(const torch::nn::BatchNormOptions& options, at::ScalarType type, at::Device where) {
  Layer layer(options);
  initialise(*layer, kSeed);
  layer->to(where, type);
  return layer;
}

// `rows` of each rank, of the shape `rest`.
template <class Layer>
void expect_as_joined(const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& rest,
                      const torch::nn::BatchNormOptions& options, at::ScalarType type = at::kFloat) {
  std::vector<std::int64_t> shape = rest;
  shape.insert(shape.begin(), std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  const at::Tensor batch = (numbers(1, shape) * 3 + 5).to(at::kCPU, type),
                   weights = numbers(2, shape).to(at::kCPU, type);
  Layer whole = made<Layer>(options, type, at::kCPU);
  std::vector<Passed> expected;
  for (std::int64_t micro = 0; micro < 2; ++micro) expected.push_back(pass(whole, batch + micro, weights));
  const double tolerance = type == at::kDouble ? 1e-11 : 2e-5;
  run_ranks(static_cast<int>(rows.size()), [&](const World& world) {
    const auto rank = world.rank();
    const std::int64_t begin = std::accumulate(rows.begin(), rows.begin() + rank, std::int64_t{0});
    const auto mine = [&](const at::Tensor& all) { return all.narrow(0, begin, rows[static_cast<std::size_t>(rank)]); };
    Layer layer = made<Layer>(options, type, device_of_rank());
    const SyncBatchNorm sync = sync_batch_norm(*layer, world);
    for (std::int64_t micro = 0; micro < 2; ++micro) {
      const Passed passed = pass(layer, mine(batch + micro), mine(weights));
      const Passed& all = expected[static_cast<std::size_t>(micro)];
      EXPECT_TRUE(near(passed.y, mine(all.y), tolerance));
      EXPECT_TRUE(near(passed.dx, mine(all.dx), tolerance));
      EXPECT_TRUE(near(all_reduce(passed.dweight, world), all.dweight, tolerance * 10));
      EXPECT_TRUE(near(all_reduce(passed.dbias, world), all.dbias, tolerance * 10));
      EXPECT_TRUE(near(passed.mean, all.mean, tolerance));
      EXPECT_TRUE(near(passed.variance, all.variance, tolerance));
    }
  });
}

TEST(SyncBatchNorms, AreThoseOfTheJoinedBatch) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    expect_as_joined<BatchNorm1d>({4, 4}, {3}, {3}, type);
    expect_as_joined<BatchNorm1d>({2, 2, 2}, {3, 5}, {3}, type);
    expect_as_joined<BatchNorm2d>({2, 2, 2, 2}, {3, 4, 5}, {3}, type);
    expect_as_joined<BatchNorm3d>({2, 2}, {3, 2, 3, 2}, {3}, type);
  }
}

TEST(SyncBatchNorms, TakeBatchesOfAnySizeAndNone) {
  expect_as_joined<BatchNorm1d>({2, 5}, {3}, {3});
  expect_as_joined<BatchNorm2d>({0, 3, 1}, {3, 4, 5}, {3});
  expect_as_joined<BatchNorm1d>({5, 0}, {3}, {3});
}

TEST(SyncBatchNorms, WithoutWeightOrRunningStatistics) {
  expect_as_joined<BatchNorm2d>({2, 3}, {3, 4, 4}, torch::nn::BatchNormOptions(3).affine(false));
  expect_as_joined<BatchNorm2d>({2, 3}, {3, 4, 4}, torch::nn::BatchNormOptions(3).track_running_stats(false));
  expect_as_joined<BatchNorm2d>({2, 3}, {3, 4, 4}, torch::nn::BatchNormOptions(3).momentum(0.5).eps(0.1));
}

// Far from zero the squares of values would leave nothing of a variance.
TEST(SyncBatchNorms, OfValuesFarFromZeroKeepTheirVariance) {
  run_ranks(2, [](const World& world) {
    BatchNorm1d layer(2);
    layer->to(device_of_rank());
    const SyncBatchNorm sync = sync_batch_norm(*layer, world);
    const at::Tensor x = at::arange(8).view({4, 2}).to(at::kFloat) + 1e6 + world.rank() * 8;
    const at::Tensor y = layer->forward(x.to(device_of_rank()));
    EXPECT_NEAR(layer->running_var[0].item<double>(), 0.9 + 0.1 * 24, 1e-4);
    EXPECT_NEAR(all_reduce(y.square().mean(), world, Reduction::mean).item<double>(), 1, 1e-4);
  });
}

TEST(SyncBatchNorms, EvaluateAsEver) {
  run_ranks(2, [](const World& world) {
    torch::nn::Sequential layers(BatchNorm1d(3),
                                 BatchNorm1d(torch::nn::BatchNormOptions(3).track_running_stats(false)));
    layers->to(device_of_rank());
    const at::Tensor x = numbers(1, {4, 3});
    const SyncBatchNorm sync = sync_batch_norm(*layers, world);
    layers->eval();
    if (world.rank() == 0) {  // alone, since nothing is exchanged
      EXPECT_TRUE(near(layers->forward(x).cpu(), ((x - x.mean(0)) / x.var(0, /*unbiased=*/false).sqrt()).cpu(), 1e-3));
    }
  });
}

TEST(SyncBatchNorms, EndWithTheirScope) {
  run_ranks(2, [](const World& world) {
    BatchNorm1d layer(3), other(3), alone(3);
    for (const BatchNorm1d& each : {layer, other, alone}) each.ptr()->to(device_of_rank());
    const at::Tensor x = numbers(world.rank(), {4, 3});
    { const SyncBatchNorm sync = sync_batch_norm(*layer, world); }
    const SyncBatchNorm sync = sync_batch_norm(*other, world);
    EXPECT_TRUE(at::equal(layer->forward(x).cpu(), alone->forward(x).cpu()));
    EXPECT_FALSE(at::equal(other->forward(x).cpu(), alone->forward(x).cpu()));
  });
}

// A program that makes it anew, in whatever order its old one ends.
TEST(SyncBatchNorms, MadeAnewJoinAsBefore) {
  run_ranks(2, [](const World& world) {
    BatchNorm1d layer(3), joined(3), alone(3);
    for (const BatchNorm1d& each : {layer, joined, alone}) each.ptr()->to(device_of_rank());
    const at::Tensor x = numbers(world.rank(), {4, 3});
    const auto of = [&](BatchNorm1d& each) { return each->forward(x).cpu(); };
    at::Tensor expected;
    {
      const SyncBatchNorm sync = sync_batch_norm(*joined, world);
      expected = of(joined);
    }
    auto sync = std::make_unique<SyncBatchNorm>(*layer, world);
    sync = std::make_unique<SyncBatchNorm>(*layer, world);
    EXPECT_TRUE(at::equal(of(layer), expected));
    *sync = sync_batch_norm(*layer, world);
    EXPECT_TRUE(at::equal(of(layer), expected));
    { const SyncBatchNorm inner = sync_batch_norm(*layer, world); }
    EXPECT_TRUE(at::equal(of(layer), expected));
    sync.reset();
    EXPECT_TRUE(at::equal(of(layer), of(alone)));
  });
}

TEST(SyncBatchNorms, ThatCannotBeAreRefused) {
  const torch::nn::Linear linear(2, 2);
  EXPECT_TRUE(says(thrown_by([&] { static_cast<void>(sync_batch_norm(*linear, World())); }), {"BatchNorm1d"}));
  torch::nn::Sequential layers(BatchNorm1d(torch::nn::BatchNormOptions(2).affine(false).track_running_stats(false)));
  EXPECT_TRUE(says(thrown_by([&] { static_cast<void>(sync_batch_norm(*layers, World())); }), {"'0'", "to know it by"}));
  BatchNorm1d layer(2);
  const SyncBatchNorm sync = sync_batch_norm(*layer, World());
  EXPECT_TRUE(says(thrown_by([&] { layer->forward(at::zeros({0, 2})); }), {"0 values a channel"}));
}

// A convolutional net of which the normalisation is in the middle.
struct Net : torch::nn::Module {
  Net()
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)))),
        norm(register_module("norm", BatchNorm2d(4))),
        head(register_module("head", torch::nn::Linear(4 * 3 * 3, 5))) {}
  at::Tensor loss(const at::Tensor& x) { return head(norm(conv(x)).relu().flatten(1)).logsumexp(1).mean(); }

  torch::nn::Conv2d conv;
  BatchNorm2d norm;
  torch::nn::Linear head;
};

at::Tensor images(std::int64_t index) {
  return numbers(index, {4, 2, 5, 5});
}

Outcome train_net(const Job& job) {
  std::vector<Outcome> runs(static_cast<std::size_t>(job.ranks));
  run_ranks(job.ranks, [&](const World& world) {
    Net net;
    net.to(device_of_rank());
    initialise(net, kSeed);
    Engine engine(net, mesh_of(job, world), job.plan, job.optimizer, job.options);
    const SyncBatchNorm sync = sync_batch_norm(net, world);
    Outcome& run = runs[static_cast<std::size_t>(world.rank())];
    for (int step = 0; step < job.steps; ++step) {
      for (int micro = 0; micro < job.plan.accumulate(); ++micro)
        engine.backward(net.loss(images(engine.micro_batch())));
      run.record(engine.step());
    }
    run.parameters = parameters_of(net, engine);
    run.parameters["running mean"] = net.norm->running_mean.cpu().clone();
    run.parameters["running variance"] = net.norm->running_var.cpu().clone();
  });
  return agreed(runs);
}

TEST(SyncBatchNorms, TrainAsOneProcessWithTheGlobalBatch) {
  const Job job{.plan = Plan::zero3(), .ranks = 2, .steps = 4};
  Job one = job;
  one.ranks = 1;
  Net net;
  net.to(device_of_rank());
  initialise(net, kSeed);
  PlainTrainer trainer(net, one);
  for (int step = 0; step < job.steps; ++step) {
    trainer.backward(net.loss(at::cat({images(2 * step), images(2 * step + 1)})));
    trainer.step();
  }
  Outcome expected = trainer.finish();
  expected.parameters["running mean"] = net.norm->running_mean.cpu();
  expected.parameters["running variance"] = net.norm->running_var.cpu();
  EXPECT_EQ(difference(expected, train_net(job), 1e-5), "");
}

TEST(SyncBatchNorms, HaveTheSameBitsUnderEveryPlan) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const int ranks : {2, 3}) {
      const Job job{.plan = Plan::ddp().precision(precision), .ranks = ranks};
      const Outcome ddp = train_net(job);
      under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(ddp, train_net(each)), ""); });
    }
}

// Micro-batches that the plan adds up first, or reduces each: all are normalised with those of their turn.
TEST(SyncBatchNorms, AccumulateOverMicroBatches) {
  const Job job{.plan = Plan::zero2().accumulate(2), .ranks = 2};
  Job other = job;
  other.plan = Plan::zero3().accumulate(2);
  EXPECT_EQ(difference(train_net(job), train_net(other)), "");
}

}  // namespace zero::test::sync_batch_norm_test

// Every operator that draws: in a forward its numbers are the micro-batch's, whoever computes that and wherever the
// program's generator is.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <mutex>

#include "harness.h"

namespace zero::test::drawing_operators_test {

namespace nn = torch::nn;

at::Tensor room() {
  return at::empty({16});
}

std::vector<at::Tensor> drawn(const at::Tensor& h) {
  const at::Tensor half = at::full({16}, 0.5), one = at::ones({16}), zero = at::zeros({16});
  const at::Tensor heads = h.unsqueeze(0);
  return {torch::dropout(h, 0.5, true),
          torch::feature_dropout(h, 0.5, true),
          torch::alpha_dropout(h, 0.5, true),
          torch::feature_alpha_dropout(h, 0.5, true),
          std::get<0>(at::native_dropout(h, 0.5, true)),
          torch::rrelu(h, 0.1, 0.3, true),
          at::scaled_dot_product_attention(heads, heads, heads, {}, 0.5),
          nn::functional::gumbel_softmax(h.view({8, 16})),
          torch::rand({16}),
          torch::randn({16}),
          torch::randint(9, {16}),
          torch::randperm(16),
          torch::rand_like(h),
          torch::randn_like(h),
          torch::randint_like(h, 5),
          torch::bernoulli(half),
          at::bernoulli(half, 0.3),
          torch::multinomial(one, 16),
          torch::poisson(one),
          torch::binomial(one * 4, half),
          at::_sample_dirichlet(at::ones({4, 4})),
          at::_standard_gamma(one),
          at::normal(zero, 1.0),
          at::normal(0.0, one),
          at::normal(zero, one),
          at::normal(0.0, 1.0, {16}),
          room().bernoulli_(0.5),
          room().normal_(),
          room().uniform_(),
          room().exponential_(),
          room().geometric_(0.5),
          room().cauchy_().clamp(-3, 3),
          room().log_normal_().clamp(-3, 3),
          room().random_(9),
          room().random_(2, 9),
          torch::randn({15}, at::kDouble).sum().expand({16})};
}

struct Net : nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor h = torch::gelu(in(numbers(index, {8, 6})).to(at::kFloat)).view({8, 4, 4});
    std::vector<at::Tensor> parts;
    for (const at::Tensor& each : drawn(h)) parts.push_back(each.to(at::kFloat).flatten().narrow(0, 0, 16));
    seen = at::stack(parts).detach();
    return out(torch::dropout(h.view({8, 16}), 0.5, true)).to(at::kFloat).square().mean() +
           at::stack(parts).square().mean() * 1e-3;
  }
  nn::Linear in = register_module("in", nn::Linear(6, 16)), out = register_module("out", nn::Linear(16, 8));
  at::Tensor seen;
};

using Seen = std::map<std::int64_t, at::Tensor>;  // by micro-batch

Outcome run(Precision precision, int ranks, std::uint64_t seed, Seen& seen) {
  torch::manual_seed(seed);
  std::mutex mutex;
  const Job job{.plan = Plan::zero2().precision(precision).accumulate(4 / ranks).reproducible(true), .ranks = ranks};
  return train_by<Net>(job, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
    for (int micro = 0; micro < job.plan.accumulate(); ++micro) {
      const std::int64_t index = engine.micro_batch();
      engine.backward(net.loss(index));
      const std::lock_guard lock(mutex);
      seen[index] = net.seen;
    }
    outcome.record(engine.step());
  });
}

void expect_same(const Seen& a, const Seen& b) {
  ASSERT_EQ(a.size(), 4);
  for (const auto& [index, values] : a)
    for (std::int64_t op = 0; op < values.size(0); ++op)
      EXPECT_TRUE(at::equal(values[op], b.at(index)[op])) << "operator " << op << ", micro-batch " << index;
}

TEST(DrawingOperators, AreTheMicroBatchs) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Seen seen, elsewhere, spread;
    const Outcome first = run(precision, 1, 1, seen);
    EXPECT_EQ(difference(first, run(precision, 1, 2, elsewhere)), "");
    EXPECT_EQ(difference(first, run(precision, 4, 3, spread)), "");
    expect_same(seen, elsewhere);
    expect_same(seen, spread);
    for (std::int64_t op = 0; op < seen[0].size(0); ++op) EXPECT_FALSE(at::equal(seen[0][op], seen[1][op])) << op;
  }
}

// Numbers of a generator that the program gives are its own.
struct Given : nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Generator own = at::detail::createCPUGenerator(static_cast<std::uint64_t>(index));
    const at::Tensor hidden = in(numbers(index, {8, 6})), mask = at::bernoulli(at::full({8, 16}, 0.5), own);
    const at::Tensor noise = at::randn({8, 16}, own) + at::empty({8, 16}).uniform_(0, 1, own);
    return out(hidden * mask + 0.1 * noise * at::randperm(16, own, at::kFloat)).square().mean();
  }
  nn::Linear in = register_module("in", nn::Linear(6, 16)), out = register_module("out", nn::Linear(16, 8));
};

TEST(DrawingOperators, AreTheProgramsWhereItGivesAGenerator) {
  const Job job{.ranks = 1};
  torch::manual_seed(4);
  const at::Tensor next = torch::rand({9});
  const Outcome given = train_by<Given>(job, {}, [&](Given& net, Engine& engine, Outcome& run, int) {
    torch::manual_seed(4);
    for (int step = 0; step < job.steps; ++step) run.record(train_step(net, engine));
    EXPECT_TRUE(at::equal(torch::rand({9}), next));
  });
  EXPECT_EQ(difference(train_plain<Given>(job), given, 1e-6), "");
}

// Dropout between the layers of a recurrent network, which one operator is.
struct Recurrent : nn::Module {
  explicit Recurrent(int of) : kind(of) {
    if (kind == 0) lstm = register_module("layers", nn::LSTM(nn::LSTMOptions(6, 8).num_layers(2).dropout(0.5)));
    if (kind == 1) gru = register_module("layers", nn::GRU(nn::GRUOptions(6, 8).num_layers(2).dropout(0.5)));
    if (kind == 2) rnn = register_module("layers", nn::RNN(nn::RNNOptions(6, 8).num_layers(2).dropout(0.5)));
  }
  at::Tensor loss(std::int64_t index) {
    const at::Tensor x = numbers(index, {5, 3, 6});
    const at::Tensor y = std::get<0>(kind == 1 ? gru(x) : kind == 2 ? rnn(x) : std::tuple(std::get<0>(lstm(x)), x));
    return y.to(at::kFloat).square().mean();
  }
  int kind;
  nn::LSTM lstm{nullptr};
  nn::GRU gru{nullptr};
  nn::RNN rnn{nullptr};
};

TEST(DrawingOperators, OfRecurrentLayersAreTheMicroBatchs) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16})
    for (const int kind : {0, 1, 2})
      for (const bool wide : {false, true}) {
        Job job{.plan = Plan::zero3().precision(precision), .ranks = 1};
        job.options.full_precision = [wide](const ParameterInfo&) { return wide; };
        SCOPED_TRACE(describe(job) + " " + std::to_string(kind));
        const Course<Recurrent> course{.make = [kind] { return std::make_shared<Recurrent>(kind); }};
        torch::manual_seed(1);
        const Outcome first = train<Recurrent>(job, course);
        torch::manual_seed(2);
        EXPECT_EQ(difference(first, train<Recurrent>(job, course)), "");
      }
}

}  // namespace zero::test::drawing_operators_test

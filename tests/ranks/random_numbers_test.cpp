// LibTorch's generator as the program uses it around a model that draws: who goes back to where numbers were drawn
// draws them again, and who does not draws what the micro-batch says. One rank but for one test, where a default
// generator is to be one thread's.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>

#include "harness.h"

namespace zero::test::random_numbers_test {

using torch::nn::Linear;

// Its first numbers are the program's, since no parameter was used before.
struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return out(torch::dropout(torch::gelu(in(torch::dropout(x, 0.2, true))), 0.5, true));
  }
  at::Tensor loss(std::int64_t index) { return forward(numbers(index, {8, 6})).square().mean(); }
  Linear in = register_module("in", Linear(6, 16)), out = register_module("out", Linear(16, 8));
};

struct Hidden : Net {
  at::Tensor forward(const at::Tensor& x) { return out(torch::dropout(torch::dropout(in(x), 0.5, true), 0.5, true)); }
  at::Tensor loss(std::int64_t index) { return forward(numbers(index, {8, 6})).square().mean(); }
};

at::Tensor where() {
  return at::detail::getDefaultCPUGenerator().get_state();
}

void go_back(const at::Tensor& state) {
  at::Generator(at::detail::getDefaultCPUGenerator()).set_state(state);
}

// As long as it lives; at its end the generator is where it was.
class Forked {
 public:
  Forked() : state_(where()) {}
  ~Forked() { go_back(state_); }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;

 private:
  at::Tensor state_;
};

// A loss over all embeddings of a batch, whose chunks go forward without gradients first, and once more with them.
void cached(Net& net, const at::Tensor& x) {
  std::vector<at::Tensor> states, rows;
  const std::vector<at::Tensor> chunks = x.split(4);
  for (const at::Tensor& chunk : chunks) {
    states.push_back(where());
    const at::NoGradGuard no_grad;
    rows.push_back(net.forward(chunk));
  }
  const at::Tensor all = at::cat(rows).requires_grad_();
  (all.mm(all.t()) * 0.1).logsumexp(1).sum().backward();
  const std::vector<at::Tensor> gradients = all.grad().split(4);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Forked forked;
    go_back(states[i]);
    (net.forward(chunks[i]) * gradients[i]).sum().backward();
  }
}

TEST(RandomNumbers, OfACachedLossAreThoseOfItsFirstForwards) {
  const at::Tensor x = numbers(1, {12, 6});
  Net plain;
  initialise(plain, kSeed);
  torch::manual_seed(77);
  cached(plain, x);
  for (const Plan& plan : all_plans()) {
    SCOPED_TRACE(plan.label());
    on_ranks<Net>({.plan = plan, .ranks = 1}, {}, [&](Net& net, Engine& engine, int) {
      torch::manual_seed(77);
      cached(net, x);
      const auto expected = plain.named_parameters();
      for (const auto& each : net.named_parameters())
        EXPECT_TRUE(at::allclose(engine.gradient(each.value()), expected[each.key()].grad(), 1e-5, 1e-6)) << each.key();
      EXPECT_TRUE(engine.step().applied);
    });
  }
}

// Masks as the forwards have drawn them.
struct Masked : Net {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = torch::gelu(in(x)), mask = torch::dropout(1 + 0 * hidden, 0.5, true);
    masks.push_back(mask.detach().to(at::kFloat));
    return out(hidden * mask).to(at::kFloat);
  }
  std::vector<at::Tensor> masks;
};

template <class Model = Net, class Body>
void on_one_rank(const Body& body, int accumulate = 1) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    on_ranks<Model>({.plan = Plan::zero3().precision(precision).accumulate(accumulate), .ranks = 1}, {}, body);
}

TEST(RandomNumbers, AreDrawnAgainFromWhereTheyWereDrawn) {
  on_one_rank([](Net& net, Engine& engine, int) {
    const at::Tensor x = numbers(1, {8, 6});
    const auto evaluated = [&] {
      const at::NoGradGuard no_grad;
      return net.forward(x);
    };
    const at::Tensor begin = where(), first = net.forward(x), between = where(), second = net.forward(x);
    EXPECT_FALSE(at::equal(first, second));
    go_back(begin);
    EXPECT_TRUE(at::equal(net.forward(x), first));
    EXPECT_TRUE(at::equal(net.forward(x), second));
    go_back(begin);
    EXPECT_TRUE(at::equal(evaluated(), first));
    EXPECT_TRUE(at::equal(net.forward(x), second));
    const at::Tensor third = where(), looked = evaluated();
    EXPECT_FALSE(at::equal(looked, second));
    go_back(third);
    EXPECT_TRUE(at::equal(net.forward(x), looked));
    engine.backward(net.forward(x).to(at::kFloat).sum());
    go_back(between);
    EXPECT_TRUE(at::equal(net.forward(x), second));
    engine.backward(net.forward(x).to(at::kFloat).sum());
    EXPECT_TRUE(engine.step().applied);
  });
}

// How a program goes forward twice with the same numbers: with gradients or without at first, by a seed or by the
// state.
struct Twice {
  bool gradients, seeds;
};

void twice(Masked& net, const Twice& how, const std::function<void(const at::Tensor&)>& backward) {
  const std::vector<at::Tensor> chunks = numbers(1, {12, 6}).split(4);
  std::vector<at::Tensor> states;
  net.masks.clear();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (how.seeds) torch::manual_seed(100 + i);
    states.push_back(where());
    const at::AutoGradMode mode(how.gradients);
    static_cast<void>(net.forward(chunks[i]));
  }
  at::ones({2}).requires_grad_().sum().backward();
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const Forked forked;
    how.seeds ? static_cast<void>(torch::manual_seed(100 + i)) : go_back(states[i]);
    backward(net.forward(chunks[i]).sum());
  }
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_TRUE(at::equal(net.masks[i], net.masks[chunks.size() + i])) << i;
    EXPECT_FALSE(at::equal(net.masks[i], net.masks[(i + 1) % chunks.size()])) << i;
  }
}

TEST(RandomNumbers, OfChunksThatGoForwardTwiceAreTheSame) {
  for (const Twice& how : {Twice{false, false}, Twice{false, true}, Twice{true, false}, Twice{true, true}})
    for (const int accumulate : {1, 3}) {
      SCOPED_TRACE(std::to_string(how.gradients) + std::to_string(how.seeds) + std::to_string(accumulate));
      torch::manual_seed(77);  // where the first chunk's state is that of a seed
      on_one_rank<Masked>(
          [&](Masked& net, Engine& engine, int) {
            for (int step = 0; step < 2; ++step) {
              twice(net, how, [&](const at::Tensor& loss) { engine.backward(loss); });
              EXPECT_TRUE(engine.step().applied);
            }
          },
          accumulate);
    }
}

// What the program has drawn for one engine outlives the other's step.
TEST(RandomNumbers, OfTwoEnginesInTurnsAreTheSame) {
  on_one_rank<Masked>([](Masked& query, Engine& engine, int) {
    Masked answer;
    initialise(answer, kSeed);
    Engine second(answer, World(), Plan::zero2(), Sgd{.lr = 0.1});
    const at::Tensor x = numbers(1, {8, 6});
    const auto forward = [&](Masked& net) { return net.forward(torch::dropout(x, 0.2, true)); };
    const auto again = [&](Masked& net, Engine& its, const at::Tensor& state) {
      go_back(state);
      its.backward(forward(net).sum());
      EXPECT_TRUE(its.step().applied);
      EXPECT_TRUE(at::equal(net.masks[0], net.masks[1]));
      net.masks.clear();
    };
    for (const bool gradients : {false, true, false}) {
      at::Tensor first, last;
      {
        const at::AutoGradMode mode(gradients);
        first = where();
        static_cast<void>(forward(query));
        last = where();
        static_cast<void>(forward(answer));
      }
      again(query, engine, first);
      again(answer, second, last);
    }
    second.release();
  });
}

at::Tensor seeded(Net& net) {
  torch::manual_seed(9);
  return net.forward(numbers(1, {8, 6})).to(at::kFloat);
}

TEST(RandomNumbers, OfOneSeedAreTheSameWithinAMicroBatch) {
  on_one_rank(
      [](Net& net, Engine& engine, int) {
        const at::Tensor first = seeded(net);
        EXPECT_TRUE(at::equal(seeded(net), first));
        engine.backward(first.sum());
        EXPECT_FALSE(at::equal(seeded(net), first));
        engine.discard();
      },
      /*accumulate=*/2);
}

// As LibTorch has it: of one forward after the other, and of one that is seeded once more.
TEST(RandomNumbers, OfLossesBeyondThePlanAreTheirOwn) {
  on_one_rank([](Net& net, Engine& engine, int) {
    const auto hidden = [&] {
      const at::Tensor ones = torch::dropout(torch::ones({64}) + 0 * net.in->bias.sum(), 0.5, true);
      engine.backward(ones.to(at::kFloat).sum());
      return ones;
    };
    const at::Tensor first = hidden(), second = hidden(), third = hidden();
    EXPECT_FALSE(at::equal(first, second) || at::equal(second, third) || at::equal(first, third));
    engine.discard();
    EXPECT_TRUE(at::equal(hidden(), first));
    EXPECT_TRUE(at::equal(hidden(), second));
    const at::Tensor before = seeded(net);
    engine.backward(before.sum());
    EXPECT_TRUE(at::equal(seeded(net), before));
    engine.discard();
  });
}

TEST(RandomNumbers, OfTheProgramStayWhereTheyAre) {
  on_one_rank<Hidden>([](Hidden& net, Engine& engine, int) {
    torch::manual_seed(5);
    const at::Tensor few = torch::rand({7}), normal = torch::randn({3}), many = torch::rand({2000});
    torch::manual_seed(5);
    engine.backward(net.loss(0));
    EXPECT_TRUE(at::equal(torch::rand({7}), few));
    engine.backward(net.loss(1));
    EXPECT_TRUE(at::equal(torch::randn({3}), normal));
    net.forward(numbers(1, {8, 6}));
    EXPECT_TRUE(at::equal(torch::rand({2000}), many));
    engine.discard();
  });
}

// Fixed noise in the middle of a forward.
struct Seeded : Net {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor hidden = torch::dropout(in(numbers(index, {8, 6})), 0.5, true);
    {
      const Forked forked;
      torch::manual_seed(3);
      const at::Tensor noise = torch::rand({1000}), more = torch::rand({5});
      torch::manual_seed(3);
      EXPECT_TRUE(at::equal(torch::rand({1000}), noise));
      EXPECT_TRUE(at::equal(torch::rand({5}), more));
      noises.push_back(noise);
    }
    return out(torch::dropout(hidden, 0.5, true)).square().mean();
  }
  std::vector<at::Tensor> noises;
};

TEST(RandomNumbers, OfASeedInAForwardAreThoseOfTheSeed) {
  torch::manual_seed(3);
  const at::Tensor noise = torch::rand({1000});
  const Job job{.ranks = 1};
  const Outcome seeded = train_by<Seeded>(job, {}, [&](Seeded& model, Engine& engine, Outcome& run, int) {
    for (int step = 0; step < job.steps; ++step) run.record(train_step(model, engine));
    for (const at::Tensor& each : model.noises) EXPECT_TRUE(at::equal(each, noise));
  });
  EXPECT_EQ(difference(train<Hidden>(job), seeded), "");
}

// To look how the model samples, and to put the numbers back, is no repetition of the training's.
TEST(RandomNumbers, OfTrainingAreNotThoseOfOtherDrawsFromTheSamePlace) {
  const Job job{.ranks = 1};
  const Outcome looked = train_by<Hidden>(job, {}, [&](Hidden& model, Engine& engine, Outcome& run, int) {
    for (int step = 0; step < job.steps; ++step) {
      {
        const Forked forked;
        const at::NoGradGuard no_grad;
        static_cast<void>(model.out(model.in(numbers(1, {3, 6}))).softmax(1).multinomial(2));
      }
      run.record(train_step(model, engine));
    }
  });
  EXPECT_EQ(difference(train<Hidden>(job), looked), "");
}

// A program that seeds alike before each micro-batch is no other one on more ranks, which have one default generator
// here, and so forwards one after the other: none of zero2's waits for another rank.
struct SeedsAlike : Hidden {
  at::Tensor loss(std::int64_t index) {
    static std::mutex alone;
    const std::lock_guard lock(alone);
    torch::manual_seed(7);
    return Hidden::loss(index);
  }
};

TEST(RandomNumbers, AreTheMicroBatchsWhoeverComputesIt) {
  const auto run = [](int ranks) {
    return train<SeedsAlike>({.plan = Plan::zero2().accumulate(4 / ranks).reproducible(true), .ranks = ranks});
  };
  EXPECT_EQ(difference(run(1), run(4)), "");
}

}  // namespace zero::test::random_numbers_test

// What the program reads and sets in the groups of an engine's optimizer: LibTorch's options, and their rates.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "familiar_programs.h"
#include "zero/error.h"

namespace zero::test::group_options_test {

namespace optim = torch::optim;

// An optimizer of ours, LibTorch's, and what a program changes before each step.
struct Case {
  Optimizer ours;
  std::function<std::unique_ptr<optim::Optimizer>(const std::vector<at::Tensor>&)> theirs;
  std::function<void(optim::Optimizer&, int step)> change;
};

template <class Class, class Options>
Case changing(const Optimizer& ours, const Options& options, const std::function<void(Options&, int step)>& change) {
  return {ours,
          [options](const std::vector<at::Tensor>& parameters) { return std::make_unique<Class>(parameters, options); },
          [change](optim::Optimizer& optimizer, int step) {
            for (auto& group : optimizer.param_groups()) {
              auto* const found = dynamic_cast<Options*>(&group.options());
              ASSERT_NE(found, nullptr);
              change(*found, step);
            }
          }};
}

const std::function<void(optim::SGDOptions&, int)> kSgd = [](optim::SGDOptions& options, int step) {
  options.lr(0.1 / (step + 1)).momentum(0.9 - 0.2 * step).dampening(0.1 * step).weight_decay(0.1 * step);
};

std::vector<Case> cases() {
  const auto adams = [](auto& options, int step) {
    options.lr(1e-2 / (step + 1)).betas({0.9 - 0.1 * step, 0.99 - 0.01 * step}).weight_decay(0.1 * step).eps(1e-4);
  };
  return {changing<optim::AdamW, optim::AdamWOptions>(AdamW{.lr = 1e-2, .eps = 1e-3, .weight_decay = 0.1},
                                                      optim::AdamWOptions(1e-2).eps(1e-3).weight_decay(0.1), adams),
          changing<optim::Adam, optim::AdamOptions>(Adam{.lr = 1e-2, .eps = 1e-3, .amsgrad = true},
                                                    optim::AdamOptions(1e-2).eps(1e-3).amsgrad(true), adams),
          changing<optim::SGD, optim::SGDOptions>(Sgd{.lr = 0.1, .momentum = 0.9}, optim::SGDOptions(0.1).momentum(0.9),
                                                  kSgd),
          changing<optim::Adagrad, optim::AdagradOptions>(
              AdaGrad{.lr = 0.1, .eps = 1e-3}, optim::AdagradOptions(0.1).eps(1e-3),
              [](optim::AdagradOptions& options, int step) {
                options.lr_decay(0.1 * step).weight_decay(0.05 * step).eps(1e-3 * (step + 1));
              }),
          changing<optim::RMSprop, optim::RMSpropOptions>(
              RmsProp{.lr = 1e-2, .momentum = 0.5, .centered = true},
              optim::RMSpropOptions(1e-2).momentum(0.5).centered(true), [](optim::RMSpropOptions& options, int step) {
                options.alpha(0.9 + 0.02 * step).momentum(0.5 + 0.1 * step).weight_decay(0.05 * step).eps(1e-4);
              })};
}

void train(Regressor& net, optim::Optimizer& optimizer, const Batches& data, const Case& tried) {
  for (std::size_t step = 0; step < data.size(); ++step) {
    tried.change(optimizer, static_cast<int>(step));
    optimizer.zero_grad();
    torch::mse_loss(net->forward(data[step].first), data[step].second).backward();
    optimizer.step();
  }
}

void expect_followed(const Case& tried) {
  expect_as_plain([&](int data_of, const auto&... engine) {
    auto net = begun<Regressor>();
    if constexpr (sizeof...(engine) == 0) {
      train(net, *tried.theirs(net->parameters()), batches(data_of, 6, 3), tried);
    } else {
      Engine by(*net, engine..., tried.ours);
      train(net, by, batches(data_of, 6, 3), tried);
      by.release();
    }
    return left_by({{"", net.get()}});
  });
}

TEST(GroupOptions, AreFollowed) {
  for (const Case& tried : cases()) {
    SCOPED_TRACE(describe(tried.ours));
    expect_followed(tried);
  }
}

// Those of a class of the program's own, too, which cannot be written to an archive.
struct DecayOptions : optim::OptimizerCloneableOptions<DecayOptions> {
  explicit DecayOptions(double rate) : lr(rate) {}
  double get_lr() const override { return lr; }
  void set_lr(const double rate) override { lr = rate; }
  double lr, factor = 1;
};

struct Decay : optim::Optimizer {
  explicit Decay(const std::vector<at::Tensor>& parameters)
      : Optimizer(parameters, std::make_unique<DecayOptions>(0.1)) {}
  at::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups())
      for (at::Tensor& parameter : group.params()) {
        const auto& options = static_cast<const DecayOptions&>(group.options());
        if (parameter.grad().defined()) parameter.mul_(options.factor).sub_(parameter.grad(), options.lr);
      }
    return {};
  }
  using Optimizer::step;
};

TEST(GroupOptions, OfAnOptimizerOfTheProgramsAreFollowed) {
  const auto make = [](const std::vector<at::Tensor>& parameters) { return std::make_unique<Decay>(parameters); };
  expect_followed(
      {TorchOptimizer{.make = make, .lr = 0.1, .label = "decay"}, make, [](optim::Optimizer& optimizer, int step) {
         for (auto& group : optimizer.param_groups())
           dynamic_cast<DecayOptions&>(group.options()).factor = 1 - 0.1 * step;
       }});
}

// What groups are built with is there to read, and so is what others have.
TEST(GroupOptions, AreThoseThatTheEngineWasBuiltWith) {
  Job job{.ranks = 1, .optimizer = AdamW{.lr = 0.2, .beta1 = 0.8, .weight_decay = 0.3}};
  job.options.groups = {
      {.takes = [](const ParameterInfo& info) { return info.name == "head.bias"; }, .optimizer = Lion{.lr = 0.1}},
      {.takes = [](const ParameterInfo& info) { return info.shape.size() == 1; }, .weight_decay = 0.01}};
  on_ranks<RegressorImpl>(job, {}, [](RegressorImpl& net, Engine& engine, int) {
    optim::AdamW& optimizer = engine;
    ASSERT_EQ(optimizer.param_groups().size(), 3u);
    const auto options = [&](std::size_t group) -> optim::OptimizerOptions& {
      return optimizer.param_groups()[group].options();
    };
    const auto decay = [&](std::size_t group) {
      return dynamic_cast<optim::AdamWOptions&>(options(group)).weight_decay();
    };
    EXPECT_EQ(decay(0), 0.3);
    EXPECT_EQ(decay(1), 0.01);
    EXPECT_EQ(dynamic_cast<optim::AdamWOptions&>(options(1)).betas(), std::make_tuple(0.8, 0.999));
    EXPECT_EQ(dynamic_cast<optim::AdamWOptions*>(&options(2)), nullptr);
    EXPECT_EQ(options(2).get_lr(), 0.1);
    EXPECT_EQ(static_cast<optim::AdamWOptions&>(optimizer.defaults()).weight_decay(), 0.3);
    EXPECT_EQ(dynamic_cast<optim::Adam*>(&engine.optimizer()), nullptr);
    EXPECT_TRUE(says(thrown_by([&] { static_cast<void>(engine.optimizer<optim::Adam>()); }),
                     {"rank 0", "adamw", "torch::optim::Adam", "torch::optim::Optimizer&"}));
    EXPECT_EQ(net.parameters().size(), 8u);
  });
}

// Nothing is updated, and the sentence names the group and the value.
TEST(GroupOptions, AreRefusedWhereTheyCannotBe) {
  const auto refusal = [](const Optimizer& optimizer, const std::function<void(optim::OptimizerParamGroup&)>& set) {
    std::string said;
    on_ranks<RegressorImpl>({.ranks = 1, .optimizer = optimizer}, {}, [&](RegressorImpl& net, Engine& engine, int) {
      net.forward(numbers(0, {5, 6})).square().mean().backward();
      set(engine.param_groups()[0]);
      said = thrown_by([&] { engine.step(); });
      EXPECT_EQ(engine.steps(), 0);
    });
    return said;
  };
  const auto with = [&]<class Options>(const Optimizer& optimizer, const std::function<void(Options&)>& set) {
    return refusal(optimizer, [&](auto& group) { set(dynamic_cast<Options&>(group.options())); });
  };
  using SGD = optim::SGDOptions;
  EXPECT_TRUE(says(with.operator()<SGD>(Sgd{}, [](SGD& o) { o.momentum(0.5); }), {"group 0", "momentum", "state"}));
  EXPECT_TRUE(says(with.operator()<SGD>(Sgd{.momentum = 0.5}, [](SGD& o) { o.momentum(0); }), {"group 0", "momentum"}));
  EXPECT_TRUE(says(with.operator()<SGD>(Sgd{}, [](SGD& o) { o.weight_decay(-1); }), {"group 0", "weight_decay"}));
  using AdamWs = optim::AdamWOptions;
  EXPECT_TRUE(says(with.operator()<AdamWs>(AdamW{}, [](AdamWs& o) { o.amsgrad(true); }), {"group 0", "amsgrad"}));
  EXPECT_TRUE(says(with.operator()<AdamWs>(AdamW{}, [](AdamWs& o) { o.betas({2, 0.9}); }), {"group 0", "beta1"}));
  using Rms = optim::RMSpropOptions;
  EXPECT_TRUE(says(with.operator()<Rms>(RmsProp{}, [](Rms& o) { o.centered(true); }), {"group 0", "centered"}));
  using Ada = optim::AdagradOptions;
  EXPECT_TRUE(says(with.operator()<Ada>(AdaGrad{}, [](Ada& o) { o.initial_accumulator_value(1); }),
                   {"group 0", "initial_accumulator_value"}));
  EXPECT_TRUE(says(refusal(AdamW{}, [](auto& group) { group.set_options(std::make_unique<optim::SGDOptions>(0.1)); }),
                   {"group 0", "another class"}));
}

TEST(GroupOptions, AreOfTheParametersThatTheEngineTrains) {
  on_ranks<RegressorImpl>({.ranks = 1, .optimizer = AdamW{}}, {}, [](RegressorImpl& net, Engine& engine, int) {
    std::vector<at::Tensor>& parameters = engine.param_groups()[0].params();
    std::ranges::reverse(parameters);
    net.forward(numbers(0, {5, 6})).square().mean().backward();
    EXPECT_TRUE(engine.step().applied);
    const at::Tensor first = std::exchange(parameters[0], at::ones({3}));
    net.forward(numbers(1, {5, 6})).square().mean().backward();
    EXPECT_TRUE(says(thrown_by([&] { engine.step(); }), {"group 0", "other parameters"}));
    parameters[0] = first;
    EXPECT_TRUE(engine.step().applied);
  });
}

TEST(GroupOptions, HaveNoStateBesideThem) {
  on_ranks<RegressorImpl>({.ranks = 1, .optimizer = AdamW{}}, {}, [](RegressorImpl& net, Engine& engine, int) {
    net.forward(numbers(0, {5, 6})).square().mean().backward();
    (void)engine.optimizer().state()[net.parameters()[0].unsafeGetTensorImpl()];
    EXPECT_TRUE(says(thrown_by([&] { engine.step(); }), {"state()", "Engine::load_state()"}));
    engine.optimizer().state().clear();
    EXPECT_TRUE(engine.step().applied);
  });
}

TEST(GroupOptions, AreTheSameOnEveryRank) {
  on_ranks<RegressorImpl>({.ranks = 3, .optimizer = AdamW{}}, {}, [](RegressorImpl& net, Engine& engine, int rank) {
    const auto set = [&](double decay) {
      for (auto& group : engine.param_groups()) static_cast<optim::AdamWOptions&>(group.options()).weight_decay(decay);
    };
    net.forward(numbers(rank, {5, 6})).square().mean().backward();
    set(rank == 2 ? 0.2 : 0.1);
    EXPECT_TRUE(
        says(thrown_by([&] { engine.step(); }), {"differ between ranks 0 and 2", "weight_decay", "call step()"}));
    set(0.1);
    EXPECT_TRUE(engine.step().applied);
  });
}

// Rates of an engine whose parameters of one dimension are in a group.
void expect_rates(double lr, double scale, const std::function<void(Engine&)>& set, const std::vector<double>& expected,
                  bool all_in_groups = false) {
  Job job{.ranks = 1, .optimizer = Sgd{.lr = lr}};
  job.options.groups = {{.takes = [](const ParameterInfo& info) { return info.shape.size() == 1; }, .lr_scale = scale}};
  if (all_in_groups)
    job.options.groups.push_back({.takes = [](const ParameterInfo&) { return true; }, .lr_scale = 0.25});
  on_ranks<RegressorImpl>(job, {}, [&](RegressorImpl& net, Engine& engine, int) {
    set(engine);
    std::vector<double> rates;
    for (auto& group : engine.param_groups()) rates.push_back(group.options().get_lr());
    EXPECT_EQ(rates, expected);
    net.forward(numbers(0, {5, 6})).square().mean().backward();
    EXPECT_EQ(engine.step().lr, all_in_groups ? 4 * expected[0] : expected[0]);
  });
}

TEST(GroupRates, KeepTheirRatioThroughZero) {
  const auto twice = [](double first, double second) {
    return [=](Engine& engine) {
      engine.set_lr(first);
      engine.set_lr(second);
    };
  };
  expect_rates(0.1, 0.5, twice(0, 0.4), {0.4, 0.2});
  expect_rates(0.1, 0.5, twice(0.7, 0.4), {0.4, 0.2});
  expect_rates(0, 0.5, twice(0, 0.4), {0.4, 0.2});
  expect_rates(0.1, 0, twice(0.3, 0.4), {0.4, 0});
  // A schedule's zero, which it sets for all.
  const auto by_hand = [](double value) {
    return [=](Engine& engine) {
      for (auto& group : engine.param_groups()) group.options().set_lr(value);
      engine.set_lr(0.4);
    };
  };
  expect_rates(0.1, 0.5, by_hand(0), {0.4, 0.2});
  expect_rates(0.1, 0.5, by_hand(0.2), {0.4, 0.4});
  // One that was set while the others' was 0 has no ratio.
  expect_rates(0.1, 0.5,
               [](Engine& engine) {
                 engine.set_lr(0);
                 engine.param_groups()[1].options().set_lr(0.3);
                 engine.set_lr(0.4);
               },
               {0.4, 0.3});
}

TEST(GroupRates, AreOfParametersInNoGroupWhereThereAreNone) {
  expect_rates(
      0.1, 0.5, [](Engine& engine) { engine.set_lr(0.4); }, {0.1, 0.2}, /*all_in_groups=*/true);
  expect_rates(
      0.1, 0.5, [](Engine&) {}, {0.025, 0.05}, /*all_in_groups=*/true);
}

}  // namespace zero::test::group_options_test

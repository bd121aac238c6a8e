// What a program chooses of a model's parameters: which are gathered together, which are not the engine's, and of which
// the norm is told.
#include <algorithm>
#include <cmath>
#include <mutex>

#include "lm.h"
#include "states.h"
#include "zero/deferred.h"
#include "zero/error.h"

namespace zero::test::choices_test {

using Names = std::vector<std::string>;

Names units_of(const Engine& engine) {
  Names names;
  for (const UnitLayout& unit : engine.layout().units()) names.push_back(unit.name());
  return names;
}

struct Chosen {
  UnitRule rule;
  Names units;
};

const std::vector<Chosen> kChosen{
    {units_in_containers(), {"embed", "fixed", "blocks.0", "blocks.1", "blocks.2", "norm", "model"}},
    {units_of_types({"Block"}), {"embed", "fixed", "blocks.0", "blocks.1", "blocks.2", "norm", "model"}},
    {units_of_types({"Linear", "Lm"}), {"model", "model#frozen"}},
    {units_of_types({"Linear"}),
     {"embed", "fixed", "blocks.0.norm", "blocks.0.up", "blocks.0.down", "blocks.1.norm", "blocks.1.up",
      "blocks.1.down", "blocks.2.norm", "blocks.2.up", "blocks.2.down", "norm", "model"}},
    {units_named({"blocks", "embed"}), {"embed", "fixed", "blocks", "norm", "model"}},
    {units_named({"blocks.*.up"}),
     {"embed", "fixed", "blocks.0.norm", "blocks.0.up", "blocks.0.down", "blocks.1.norm", "blocks.1.up",
      "blocks.1.down", "blocks.2.norm", "blocks.2.up", "blocks.2.down", "norm", "model"}},
    {units_by_size(100, 1600), {"embed", "fixed", "blocks", "norm", "model"}},
    {[](const ModuleInfo& module) { return module.container; }, {"embed", "fixed", "blocks", "norm", "model"}}};

Names sorted(Names names) {
  std::ranges::sort(names);
  return names;
}

// Frozen parameters are units of their own.
TEST(UnitsByChoice, AreThoseOfTheRule) {
  for (std::size_t i = 0; i < kChosen.size(); ++i) {
    Job job{.ranks = 1, .options = {.units = kChosen[i].rule}};
    Names units;
    on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
      for (at::Tensor& parameter : model.fixed->parameters()) EXPECT_FALSE(parameter.requires_grad());
      for (const std::string& name : units_of(engine)) units.push_back(name);
    });
    units.erase(std::ranges::unique(units).begin(), units.end());
    EXPECT_EQ(sorted(units), sorted(kChosen[i].units)) << i;
  }
}

TEST(UnitsByChoice, HaveTheSameBits) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const int ranks : {2, 3}) {
      Job job{.plan = Plan::ddp().precision(precision), .ranks = ranks};
      job.options.clip = 0.5;
      const Outcome expected = train<Lm>(job, lm_with_dropout(0.1));
      for (const Plan& plan : {Plan::zero1(), Plan::zero3()})
        for (const Chosen& chosen : kChosen) {
          job.plan = plan.precision(precision);
          job.options.units = chosen.rule;
          EXPECT_EQ(difference(expected, train<Lm>(job, lm_with_dropout(0.1))), "") << describe(job);
        }
    }
}

// A checkpoint names no units.
TEST(UnitsByChoice, GoOnFromCheckpointsOfOthers) {
  MemoryState state;
  Job job{.plan = Plan::zero3(), .ranks = 2};
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    state.add(engine.state());
  });
  const auto go_on = [&](const UnitRule& rule) {
    job.options.units = rule;
    return train_by<Lm>(job, {}, [&](Lm& model, Engine& engine, Outcome& run, int) {
      engine.load_state(state);
      run.record(train_step(model, engine));
      run.parameters = parameters_of(model, engine);
    });
  };
  const Outcome expected = go_on({});
  for (const Chosen& chosen : kChosen) EXPECT_EQ(difference(expected, go_on(chosen.rule)), "");
}

TEST(UnitsByChoice, AreRefusedWhereTheyAreNone) {
  Lm model;
  const std::string said = thrown_by(
      [&] { const Engine engine(model, World(), Plan::ddp(), AdamW{}, {.units = units_of_types({"Blok"})}); });
  EXPECT_TRUE(says(said, {"Options::units takes no module", "Block", "Embedding", "LayerNorm", "Sequential"})) << said;
}

TEST(UnitsByChoice, AreTheSameOnAllRanks) {
  const std::string said = thrown_by([] {
    run_ranks(
        2,
        [](const World& world) {
          Lm model;
          const UnitRule rule = world.rank() == 0 ? units_in_containers() : units_named({"blocks"});
          const Engine engine(model, world, Plan::zero3(), AdamW{}, {.units = rule});
        },
        kToDisagree);
  });
  EXPECT_TRUE(says(said, {"different models or plans", "in unit 'blocks"})) << said;
}

// Rank 0's run, with the parameters that the engine has. `bias` is the same on all ranks, whoever's it is.
Outcome train_engines_own(const Job& job, bool bias_trains, const std::function<void(Lm&, Engine&)>& after_step) {
  Outcome outcome;
  run_ranks(job.ranks, [&](const World& world) {
    Lm model;
    initialise(model, kSeed);
    model.bias.set_requires_grad(bias_trains);
    Engine engine(model, mesh_of(job, world), job.plan, job.optimizer, job.options);
    Outcome run;
    for (int step = 0; step < job.steps; ++step) {
      model.bias.mutable_grad().reset();
      run.record(train_step(model, engine));
      after_step(model, engine);
    }
    for (const auto& item : model.named_parameters())
      if (item.key() != "bias") run.parameters[item.key()] = engine.main_parameter(item.value());
    if (world.rank() == 0) outcome = run;
  });
  return outcome;
}

bool is_bias(const ParameterInfo& info) {
  return info.name == "bias";
}

// The engine's parameters go on as if the others were frozen; those are as they were, with gradients of their own.
TEST(IgnoredParameters, AreLeftAlone) {
  for (const int ranks : {1, 2}) {
    Job job{.plan = Plan::ddp(), .ranks = ranks};
    const Outcome expected = train_engines_own(job, /*bias_trains=*/false, [](Lm&, Engine&) {});
    job.options.ignored = is_bias;
    Lm first;
    initialise(first, kSeed);
    under_every_plan(job, [&](const Job& each) {
      const Outcome outcome = train_engines_own(each, /*bias_trains=*/true, [&](Lm& model, Engine& engine) {
        EXPECT_THROW(engine.layout().find("bias"), ConfigError);
        ASSERT_TRUE(model.bias.grad().defined());
        EXPECT_GT(model.bias.grad().abs().max().item<double>(), 0);
        EXPECT_TRUE(model.bias.equal(first.bias));
        const EngineState state = engine.state();
        for (const StateTensor& tensor : state.tensors()) EXPECT_NE(tensor.key.name, "bias");
      });
      EXPECT_EQ(difference(expected, outcome), "");
    });
  }
}

// The program updates them by itself.
TEST(IgnoredParameters, AreThePrograms) {
  Job job{.plan = Plan::zero3(), .ranks = 1, .options = {.ignored = is_bias}};
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
    torch::optim::SGD own({model.bias}, torch::optim::SGDOptions(0.1));
    const at::Tensor before = model.bias.detach().clone();
    own.zero_grad();
    train_step(model, engine);
    own.step();
    EXPECT_TRUE(model.bias.equal(before.add(model.bias.grad(), -0.1)));
    const Gather scope(model.parameters());
    model.bias.detach().zero_();
  });
}

// What is deferred of them has values when the engine is built.
TEST(IgnoredParameters, AreThereWhereTheModelIsDeferred) {
  torch::manual_seed(5);
  Lm whole;
  torch::manual_seed(5);
  const auto model = deferred([] { return std::make_shared<Lm>(); });
  const Engine engine(*model, World(), Plan::zero3(), AdamW{},
                      {.ignored = [](const ParameterInfo& info) { return info.name.starts_with("blocks.1."); }});
  const auto values = whole.named_parameters();
  for (const auto& item : model->blocks[1]->named_parameters())
    EXPECT_TRUE(item.value().equal(values["blocks.1." + item.key()])) << item.key();
}

TEST(IgnoredParameters, AreNotAll) {
  Lm model;
  EXPECT_TRUE(says(thrown_by([&] {
                     const Engine engine(model, World(), Plan::ddp(), AdamW{},
                                         {.ignored = [](const ParameterInfo&) { return true; }});
                   }),
                   {"Options::ignored takes all of its parameters"}));
}

ParamGroup named(const std::string& part) {
  return {.takes = [part](const ParameterInfo& info) { return info.name.find(part) != std::string::npos; }};
}

// Each group's, of the mean gradient before clipping, and the same under every plan.
TEST(GroupNorms, AreThoseOfTheGroupsGradients) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const int ranks : {1, 2, 3}) {
      Job job{.plan = Plan::ddp().precision(precision), .ranks = ranks};
      job.options.clip = 0.1;
      job.options.groups = {named("norm"), named("embed"), named("nothing")};
      job.options.group_norms = true;
      std::optional<std::vector<double>> expected;
      under_every_plan(job, [&](const Job& each) {
        on_ranks<Lm>(each, {}, [&](Lm& model, Engine& engine, int rank) {
          engine.backward(model.loss(engine.micro_batch()));
          std::vector<double> squares(4);
          for (const auto& item : model.named_parameters()) {
            if (!item.value().requires_grad()) continue;
            const std::size_t group = item.key().find("norm") != std::string::npos    ? 0
                                      : item.key().find("embed") != std::string::npos ? 1
                                                                                      : 3;
            squares[group] += engine.gradient(item.value()).to(at::kDouble).square().sum().item<double>();
          }
          const StepReport report = engine.step();
          ASSERT_EQ(report.group_norms.size(), 4U);
          double all = 0;
          for (std::size_t i = 0; i < 4; ++i) {
            EXPECT_NEAR(report.group_norms[i], std::sqrt(squares[i]), 1e-5 * std::sqrt(squares[i])) << i;
            all += report.group_norms[i] * report.group_norms[i];
          }
          EXPECT_NEAR(report.grad_norm, std::sqrt(all), 1e-12 * report.grad_norm);
          EXPECT_EQ(report.group_norms[2], 0);
          if (rank != 0) return;
          EXPECT_EQ(expected.value_or(report.group_norms), report.group_norms);
          expected = report.group_norms;
        });
      });
    }
}

TEST(GroupNorms, AreToldOnRequestOnly) {
  Job job{.plan = Plan::zero2(), .ranks = 2, .options = {.groups = {named("norm")}}};
  on_ranks<Lm>(job, {},
               [&](Lm& model, Engine& engine, int) { EXPECT_TRUE(train_step(model, engine).group_norms.empty()); });
}

// A step that is skipped has none.
TEST(GroupNorms, AreOfStepsThatAreApplied) {
  Job job{.plan = Plan::zero3().precision(Precision::fp16), .ranks = 2};
  job.options.group_norms = true;
  job.options.loss_scale = LossScale{.initial = 0x1p40};
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
    const StepReport report = train_step(model, engine);
    EXPECT_TRUE(report.skipped);
    EXPECT_TRUE(report.group_norms.empty());
  });
}

}  // namespace zero::test::choices_test

// What may be done between steps whatever a training is set to: scopes and evaluations, units unfrozen late,
// checkpoints.
#include <torch/torch.h>

#include "activation_trials.h"
#include "contracts.h"
#include "folder.h"

namespace zero::test::contracts_between_steps_test {

class SettingsOfEachKind : public testing::TestWithParam<Setting> {};

// What the parameters are at the end, and in the module that has them back.
void release(Lm& model, Engine& engine, Outcome& run) {
  run.parameters = parameters_of(model, engine);
  engine.release();
  for (const auto& item : model.named_parameters()) {
    const at::Tensor released = item.value().detach().cpu(), &stored = run.parameters.at(item.key() + " as stored");
    const bool exact = engine.plan()[State::parameter].wire == Wire::native;
    EXPECT_TRUE(!exact || at::equal(released.to(stored.scalar_type()), stored)) << item.key();
    run.parameters[item.key() + " released"] = released;
  }
}

// Scopes that write, inside each other, from one rank and left by an exception, and forwards without gradients.
Outcome trained_in_scopes(const Job& job, const Course<Lm>& course) {
  std::vector<Outcome> runs(static_cast<std::size_t>(job.ranks));
  on_ranks<Lm>(job, course, [&](Lm& model, Engine& engine, int rank) {
    Outcome& run = runs[static_cast<std::size_t>(rank)];
    const auto evaluate = [&] {
      const torch::NoGradGuard no_grad;
      for (int index = 0; index < 2; ++index) run.losses.push_back(model.loss(index).item<double>());
    };
    const auto write = [&](double value) {
      const Gather scope({model.embed->weight, model.bias, model.norm->weight});
      const torch::NoGradGuard no_grad;
      model.embed->weight.select(0, 3).mul_(1.5);
      model.norm->weight.fill_(value);
      const Gather inner({model.bias}, job.ranks - 1);
      model.bias.add_(rank == job.ranks - 1 ? 0.5 : 7);
    };
    const auto leave = [&] {
      const Gather scope({model.embed->weight});
      const torch::NoGradGuard no_grad;
      model.embed->weight.zero_();
      throw std::runtime_error("left");
    };
    evaluate();
    for (int step = 0; step < 2; ++step) {
      run.record(step_of(model, engine, step));
      const double value = step == 0 ? 0.25 : 4;  // far from what is there, which main weights would keep
      write(value);
      EXPECT_TRUE(engine.main_parameter(model.norm->weight).eq(value).all().item<bool>());
      evaluate();
      EXPECT_EQ(thrown_by(leave), "left");
    }
    run.record(step_of(model, engine, 2));
    evaluate();
    release(model, engine, run);
  });
  return agreed(runs);
}

TEST_P(SettingsOfEachKind, HaveScopesThatSeeAndWrite) {
  const Delays delays(GetParam().states_on(Tier::disk));
  const Setting reference = GetParam().reference();
  EXPECT_EQ(difference(trained_in_scopes(reference.job(), lm_with_dropout(0)),
                       trained_in_scopes(GetParam().job(), delays.on(lm_with_dropout(0)))),
            "")
      << reference.title();
}

// A unit that is trained from the second step on gets its first state while others' are on their way; later a step has
// more micro-batches than were planned, where the plan can have them.
Outcome trained_late(const Job& job, const Course<Lm>& course, bool more) {
  return train_by(job, course, [&](Lm& model, Engine& engine, Outcome& run, int rank) {
    const at::Tensor frozen = engine.main_parameter(model.fixed->weight);
    for (int step = 0; step < kSteps; ++step) {
      for (at::Tensor& parameter : model.fixed->parameters()) parameter.set_requires_grad(step > 0);
      for (int loss = 0; more && step == 2 && loss < 2; ++loss) engine.backward(model.loss(100 + 10 * rank + loss));
      run.record(step_of(model, engine, step));
    }
    EXPECT_FALSE(at::equal(engine.main_parameter(model.fixed->weight), frozen));
  });
}

TEST_P(SettingsOfEachKind, TrainUnitsThatAreUnfrozenLate) {
  const Delays delays(GetParam().states_on(Tier::disk));
  const Setting reference = GetParam().reference();
  const bool more = GetParam().accumulate == 1 && reference.ranks.count == GetParam().ranks.count;
  EXPECT_EQ(difference(trained_late(reference.job(), lm_with_dropout(0), more),
                       trained_late(GetParam().job(), delays.on(lm_with_dropout(0)), more)),
            "")
      << reference.title();
}

// Where units are used in backward once more, by operators that need not be those of its order.
TEST_P(SettingsOfEachKind, ComputeActivationsAgainToTheBit) {
  const Course<Lm> again{.make = [] {
    const auto model = std::make_shared<Lm>();
    model->checkpoints = true;
    return model;
  }};
  const Delays delays(GetParam().states_on(Tier::disk));
  const Setting reference = GetParam().reference();
  EXPECT_EQ(difference(trained_late(reference.job(), lm_with_dropout(0), false),
                       trained_late(GetParam().job(), delays.on(again), false)),
            "")
      << reference.title();
}

// What is dropped and comes back is what it was, whatever else is on its way.
TEST_P(SettingsOfEachKind, KeepActivationsWithinABudgetToTheBit) {
  const Delays delays(GetParam().states_on(Tier::disk));
  Job within = GetParam().job();
  const Outcome without = trained_late(within, delays.on(lm_with_dropout(.1)), false);
  within.plan = within.plan.activation_budget({.share = .3});
  const Folder folder;
  if (within.options.disk.directories.empty())
    within.options.disk = {.directories = {folder.path()}, .block = 16384, .depth = 4};
  const Trials trials;
  EXPECT_EQ(difference(without, trained_late(within, delays.on(lm_with_dropout(.1)), false)), "");
  EXPECT_GT(trials.recomputed(), 0);
  within.plan = within.plan.offload(State::activation, on_devices() ? Tier::host : Tier::disk);
  const Trials by_chance(3);
  EXPECT_EQ(difference(without, trained_late(within, delays.on(lm_with_dropout(.1)), false)), "");
  EXPECT_GT(by_chance.recomputed(), 0);
}

// The steps after so many.
Outcome after(Outcome outcome, std::ptrdiff_t steps) {
  for (std::vector<double>* const values : {&outcome.losses, &outcome.norms})
    values->erase(values->begin(), values->begin() + steps);
  return outcome;
}

// Goes on from a checkpoint, whatever was before; makes so many steps, and one more while each save is under way.
// `first`: the number of the first step.
Outcome gone_on(const Job& job, const Course<Lm>& course, const std::string& from, int first, int steps,
                const std::vector<std::string>& saves) {
  return train_by(job, course, [&](Lm& model, Engine& engine, Outcome& run, int) {
    const auto step = [&] { run.record(step_of(model, engine, first + static_cast<int>(run.losses.size()))); };
    if (!from.empty()) {
      step_of(model, engine, 0);
      engine.load(from);
    }
    for (int i = 0; i < steps; ++i) step();
    for (const std::string& to : saves) {
      engine.save(to, {.background = true});
      step();
      engine.finish_save();
    }
  });
}

// From the reference to this setting, and from that to states on other tiers.
TEST_P(SettingsOfEachKind, AreSavedAndLoadedByOthers) {
  const Folder folder;
  const auto file = [&](const char* name) { return folder.path() + "/" + name; };
  const Setting reference = GetParam().reference(), other = GetParam().elsewhere();
  const Course<Lm> course = lm_with_dropout(0.2);
  const Outcome expected = gone_on(reference.job(), course, "", 0, 2, {file("two"), file("three")});
  const Delays delays(GetParam().states_on(Tier::disk)), others(other.states_on(Tier::disk));
  EXPECT_EQ(
      difference(after(expected, 2), gone_on(GetParam().job(), delays.on(course), file("two"), 2, 1, {file("here")})),
      "")
      << reference.title();
  EXPECT_EQ(difference(after(expected, 3), gone_on(other.job(), others.on(course), file("here"), 3, 1, {})), "")
      << other.title();
}

INSTANTIATE_TEST_SUITE_P(All, SettingsOfEachKind, testing::ValuesIn(settings_of_each_kind()),
                         [](const auto& tested) { return tested.param.title(); });

}  // namespace zero::test::contracts_between_steps_test

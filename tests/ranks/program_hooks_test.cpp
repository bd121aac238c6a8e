// Hooks of the program's on gradients of an engine's parameters, set and taken away when it likes.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "familiar.h"
#include "zero/error.h"

namespace zero::test::program_hooks_test {

using torch::autograd::variable_list;
using Call = std::function<void(const at::Tensor& parameter)>;

// In the one place that a tensor has.
struct Accumulated : torch::autograd::PostAccumulateGradHook {
  explicit Accumulated(Call c) : call(std::move(c)) {}
  void operator()(const at::Tensor& parameter) override { call(parameter); }
  Call call;
};

// On the node that accumulates.
struct OnNode : torch::autograd::FunctionPostHook {
  OnNode(at::Tensor p, Call c) : parameter(std::move(p)), call(std::move(c)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    call(parameter);
    return outputs;
  }
  at::Tensor parameter;
  Call call;
};

// Sets a hook; what it returns keeps it alive.
using Access = std::shared_ptr<void> (*)(const at::Tensor& parameter, Call call);

std::shared_ptr<void> accumulated(const at::Tensor& parameter, Call call) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Accumulated>(std::move(call)));
  return {};
}

std::shared_ptr<void> on_node(const at::Tensor& parameter, Call call) {
  const auto node = torch::autograd::impl::grad_accumulator(parameter);
  node->add_post_hook(std::make_unique<OnNode>(parameter, std::move(call)));
  return std::make_shared<c10::intrusive_ptr<torch::autograd::Node>>(node);
}

// Before it is accumulated.
std::shared_ptr<void> on_tensor(const at::Tensor& parameter, Call call) {
  parameter.register_hook([=](const at::Tensor&) { call(parameter); });
  return {};
}

const std::vector<std::vector<std::string>> kSome{
    {"right.bias"},
    {"body.weight"},
    {"right.weight", "right.bias"},
    {"body.weight", "body.bias", "left.weight", "left.bias", "right.weight", "right.bias"}};

std::vector<at::Tensor> those(Net& net, const std::vector<std::string>& names) {
  std::vector<at::Tensor> found;
  for (const std::string& name : names) found.push_back(net.named_parameters()[name]);
  return found;
}

// Before the first forward, and between a forward and its backward.
TEST(ProgramHooks, LoseNoGradient) {
  Job job = kJob;
  job.steps = 2;
  const Outcome expected = train<Net>(job);
  under_every_plan(job, [&](const Job& each) {
    for (const Access way : {accumulated, on_node, on_tensor})
      for (const auto& names : kSome)
        for (const bool own : {true, false}) {
          const Outcome run = train_by<Net>(each, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
            std::vector<std::shared_ptr<void>> kept;
            std::size_t seen = 0;
            for (int step = 0; step < each.steps; ++step) {
              const at::Tensor loss = net.loss(engine.micro_batch());
              for (const at::Tensor& parameter : those(net, names))
                kept.push_back(way(
                    parameter, [&](const at::Tensor& p) { seen += p.grad().defined() == (way != on_tensor) ? 1 : 0; }));
              own ? engine.backward(loss) : loss.backward();
              outcome.record(engine.step());
            }
            EXPECT_GE(seen, 2 * names.size());
            for (const at::Tensor& parameter : net.parameters()) accumulated(parameter, [](const at::Tensor&) {});
          });
          EXPECT_EQ(difference(expected, run), "") << names.front() << own;
        }
  });
}

// What hooks see is this backward's gradient, and what they make of it is trained.
TEST(ProgramHooks, SeeAndChangeGradients) {
  Job job = kJob;
  under_every_plan(job, [](const Job& each) {
    for (const Access way : {accumulated, on_node})
      on_ranks<Net>(each, {}, [&](Net& net, Engine& engine, int) {
        net.eval();
        net.loss(3).backward();
        const at::Tensor expected = engine.gradient(net.left->weight), dropped = engine.gradient(net.left->bias);
        net.zero_grad();
        at::Tensor seen;
        const auto twice = way(net.left->weight, [&](const at::Tensor& p) {
          seen = p.grad().clone();
          const torch::NoGradGuard no_grad;
          p.mutable_grad().mul_(2);
        });
        const auto taken = way(net.left->bias, [&](const at::Tensor& p) { p.mutable_grad().reset(); });
        net.loss(3).backward();
        EXPECT_TRUE(at::allclose(seen, expected, 1e-5, 1e-6));
        EXPECT_TRUE(at::allclose(engine.gradient(net.left->weight), expected * 2, 1e-5, 1e-6));
        EXPECT_GT(dropped.abs().max().item<double>(), 0);
        EXPECT_EQ(engine.gradient(net.left->bias).abs().max().item<double>(), 0);
        EXPECT_TRUE(engine.step().applied);
        accumulated(net.left->weight, [](const at::Tensor&) {});
        accumulated(net.left->bias, [](const at::Tensor&) {});
      });
  });
}

// From a hook, of a parameter whose gradient is still to come.
TEST(ProgramHooks, AreSetAndTakenAwayWithinABackward) {
  const Outcome expected = train<Net>(kJob);
  under_every_plan(kJob, [&](const Job& each) {
    const Outcome run = train_by<Net>(each, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
      int seen = 0;
      for (int step = 0; step < each.steps; ++step) {
        accumulated(net.right->weight,
                    [&](const at::Tensor&) { accumulated(net.body->weight, [&](const at::Tensor&) { ++seen; }); });
        net.loss(engine.micro_batch()).backward();
        outcome.record(engine.step());
        for (const at::Tensor& parameter : net.parameters())
          torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
      }
      EXPECT_EQ(seen, each.steps);
    });
    EXPECT_EQ(difference(expected, run), "");
  });
}

// Frozen when the engine is built, too.
TEST(ProgramHooks, DoNotHideBackwardsThatAreRefused) {
  for (const Plan& plan : all_plans())
    run_ranks(2, [&](const World& world) {
      Net net;
      initialise(net, kSeed);
      net.body->weight.requires_grad_(false);
      Engine engine(net, world, plan, Sgd{.lr = 0.1});
      net.body->weight.requires_grad_(true);
      for (const at::Tensor& parameter : net.parameters()) accumulated(parameter, [](const at::Tensor&) {});
      for (const auto& each : net.named_parameters()) {
        const at::Tensor loss = net.loss(0);
        const std::string fault =
            thrown_by([&] { torch::autograd::backward({loss}, {}, false, false, {each.value()}); });
        EXPECT_TRUE(says(fault, {each.key(), "outside of a backward"}));
        engine.discard();
      }
      net.loss(0).backward();
      EXPECT_GT(engine.gradient(net.body->weight).abs().max().item<double>(), 0);
      EXPECT_TRUE(engine.step().applied);
    });
}

// One that throws leaves nothing behind, but that numbers were drawn, as in plain LibTorch.
TEST(ProgramHooks, MayThrow) {
  const Outcome expected = train_by<Net>(kJob, {}, [](Net& net, Engine& engine, Outcome& outcome, int) {
    net.eval();
    for (int step = 0; step < kJob.steps; ++step) outcome.record(train_step(net, engine));
  });
  under_every_plan(kJob, [&](const Job& each) {
    for (const Access way : {accumulated, on_node}) {
      const Outcome run = train_by<Net>(each, {}, [&](Net& net, Engine& engine, Outcome& outcome, int) {
        net.eval();
        bool throws = false;
        std::vector<std::shared_ptr<void>> kept;
        for (int step = 0; step < each.steps; ++step) {
          kept.push_back(way(step == 0 ? net.right->bias : net.left->weight, [&](const at::Tensor&) {
            if (throws) throw std::runtime_error("a hook's fault");
          }));
          for (const bool own : {true, false}) {
            throws = true;
            const at::Tensor loss = net.loss(engine.micro_batch());
            EXPECT_TRUE(says(thrown_by([&] { own ? engine.backward(loss) : loss.backward(); }), {"a hook's fault"}));
          }
          throws = false;
          net.loss(engine.micro_batch()).backward();
          outcome.record(engine.step());
        }
        for (const at::Tensor& parameter : {net.right->bias, net.left->weight})
          torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
      });
      EXPECT_EQ(difference(expected, run), "");
    }
  });
}

// Of several engines that one backward reaches; and of an engine that has ended they are the program's as before.
TEST(ProgramHooks, OfSeveralEngines) {
  for (const Plan& plan : all_plans())
    run_ranks(2, [&](const World& world) {
      Linear first(4, 3), last(3, 2);
      initialise(*first, kSeed);
      initialise(*last, kSeed);
      int seen = 0;
      {
        Engine of_first(*first, world, plan, Sgd{.lr = 0.1}), of_last(*last, world, plan, Sgd{.lr = 0.1});
        for (const auto& each : {first->weight, first->bias, last->weight, last->bias})
          accumulated(each, [&](const at::Tensor&) { ++seen; });
        for (int step = 0; step < 3; ++step) {
          last(first(numbers(step, {5, 4}))).square().mean().backward();
          EXPECT_TRUE(of_first.step().applied);
          EXPECT_TRUE(of_last.step().applied);
        }
        EXPECT_EQ(seen, 12);
        of_last.release();
      }
      last(numbers(9, {5, 3})).square().mean().backward();
      EXPECT_EQ(seen, 14);
      EXPECT_TRUE(last->weight.grad().defined());
    });
}

}  // namespace zero::test::program_hooks_test

// Forwards inside backward, which compute activations again, by zero::checkpoint and as a program writes them: the bits
// of keeping them. What torch.utils.checkpoint does of it is in tests/python/recomputation_test.py.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "covering.h"
#include "harness.h"
#include "zero/activations.h"

namespace zero::test::recomputation_test {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::nn::LayerNorm;
using torch::nn::Linear;
using Part = std::function<at::Tensor(const at::Tensor&)>;

constexpr std::int64_t kWidth = 16;

at::Generator generator() {
  return at::detail::getDefaultCPUGenerator();
}

// A checkpoint as a program writes it: keeps its input alone, and computes with gradients enabled in backward.
struct ByHand : torch::autograd::Function<ByHand> {
  struct Called : torch::CustomClassHolder {
    explicit Called(Part f) : function(std::move(f)) {}
    Part function;
  };
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const c10::intrusive_ptr<Called>& called) {
    context->saved_data["function"] = c10::IValue::make_capsule(called);
    context->saved_data["state"] = generator().get_state();
    context->save_for_backward({x});
    return called->function(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto called = c10::static_intrusive_pointer_cast<Called>(context->saved_data["function"].toCapsule());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::Tensor now = generator().get_state();
    generator().set_state(context->saved_data["state"].toTensor());
    at::Tensor y;
    {
      const torch::AutoGradMode enabled(true);
      y = called->function(x);
    }
    generator().set_state(now);
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

// Which parts of the network are computed again.
enum class Again { nothing, blocks, first_too, nested, scores };

struct Parts {
  Again again = Again::nothing;
  bool by_hand = false;
  at::Tensor run_again(const Part& part, const at::Tensor& x) const {
    return by_hand ? ByHand::apply(x, c10::make_intrusive<ByHand::Called>(part)) : checkpoint(part, x);
  }
};

struct Block : torch::nn::Module {
  explicit Block(double dropped) : p(dropped) {}
  // Between products that are cast, without parameters.
  static at::Tensor mixed(const at::Tensor& x) { return torch::softmax(x.mm(x.t()) * 0.3, -1).mm(x); }
  at::Tensor forward(const at::Tensor& x, const Parts& parts) {
    const at::Tensor h = in(norm(x));
    const at::Tensor mixed_h = parts.again == Again::scores ? parts.run_again(mixed, h) : mixed(h);
    return x + torch::dropout(out(torch::gelu(mixed_h)), p, true);
  }
  LayerNorm norm = register_module("norm", LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  Linear in = register_module("in", Linear(kWidth, kWidth)), out = register_module("out", Linear(kWidth, kWidth));
  double p;
};

struct Net : torch::nn::Module {
  explicit Net(Parts computed = {}, double dropped = 0) : parts(computed) {
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("b" + std::to_string(i), std::make_shared<Block>(dropped)));
  }
  at::Tensor block(std::size_t i, const at::Tensor& x) { return blocks[i]->forward(x, parts); }
  at::Tensor block_again(std::size_t i, const at::Tensor& x) {
    return parts.run_again([this, i](const at::Tensor& y) { return block(i, y); }, x);
  }
  at::Tensor begin(const at::Tensor& given) {
    const auto first_block = [this](const at::Tensor& x) { return block(0, first(x)); };
    if (parts.again != Again::first_too) return first_block(given);
    return parts.run_again(first_block, parts.by_hand ? given.clone().requires_grad_() : given);
  }
  at::Tensor forward(const at::Tensor& given) {
    const at::Tensor x = begin(given);
    const auto both_again = [this](const at::Tensor& y) { return block_again(2, block_again(1, y)); };
    if (parts.again == Again::nested) return head(parts.run_again(both_again, x));
    if (parts.again == Again::blocks || parts.again == Again::first_too) return head(both_again(x));
    return head(block(2, block(1, x)));
  }
  at::Tensor loss(std::int64_t index) { return forward(numbers(index, {8, 6})).to(at::kFloat).square().mean(); }

  Parts parts;
  Linear first = register_module("first", Linear(6, kWidth)), head = register_module("head", Linear(kWidth, 4));
  std::vector<std::shared_ptr<Block>> blocks;
};

using Case = std::tuple<Plan, Precision, int, Again, bool>;
class Recomputation : public testing::TestWithParam<Case> {};

Outcome trained(const Job& job, Parts parts, double dropped) {
  Course<Net> course;
  course.make = [=] { return std::make_shared<Net>(parts, dropped); };
  return train<Net>(job, course);
}

TEST_P(Recomputation, HasTheBitsOfKeepingActivations) {
  const auto& [plan, precision, ranks, again, by_hand] = GetParam();
  Job job{.plan = plan.precision(precision).accumulate(2), .ranks = ranks};
  job.options.seed = 7;
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 64};
  const double dropped = ranks == 1 ? 0.3 : 0;  // ranks that are threads have one default generator
  EXPECT_EQ(difference(trained(job, {}, dropped), trained(job, {again, by_hand}, dropped)), "");
}

std::string name_of(const testing::TestParamInfo<Case>& tested) {
  const auto& [plan, precision, ranks, again, by_hand] = tested.param;
  constexpr std::array kAgain{"Nothing", "Blocks", "FirstToo", "Nested", "Scores"};
  return in_title(ranks, 2, precision) + in_title(plan.label()) + kAgain[static_cast<std::size_t>(again)] +
         (by_hand ? "ByHand" : "");
}

INSTANTIATE_TEST_SUITE_P(
    All, Recomputation,
    testing::ValuesIn(covering(
        all_plans(), std::vector{Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8}, std::vector{1, 2},
        std::vector{Again::blocks, Again::first_too, Again::nested, Again::scores}, std::vector{false, true})),
    name_of);

// With create_graph backward's own operators run with gradients enabled, and are computed in the dtypes of the forward.
TEST(Recomputations, AreNotGradientsOfGradients) {
  const auto gradients = [](bool create_graph) {
    std::map<std::string, at::Tensor> all;
    on_ranks<Net>({.plan = Plan::zero3().precision(Precision::bf16), .ranks = 1},
                  {.make = [] { return std::make_shared<Net>(); }}, [&](Net& net, Engine& engine, int) {
                    net.loss(0).backward({}, /*retain_graph=*/false, create_graph);
                    for (const auto& item : net.named_parameters()) all[item.key()] = engine.gradient(item.value());
                    engine.discard();
                  });
    return all;
  };
  const auto first = gradients(false);
  for (const auto& [name, gradient] : gradients(true)) EXPECT_TRUE(at::equal(gradient, first.at(name))) << name;
}

// Without an engine.
struct Counted {
  TensorFunction both() {
    return [this](const std::vector<at::Tensor>& x) {
      ++calls;
      const at::Tensor product = layer(x[0]) * x[1];
      return std::vector<at::Tensor>{torch::dropout(product, 0.4, true), product.argmax(-1), x[1].exp()};
    };
  }
  Linear layer{6, 6};
  int calls = 0;
};

TEST(ActivationCheckpoint, HasSeveralInputsAndResults) {
  Counted counted;
  const auto gradients = [&](bool again) {
    const at::Tensor x = numbers(1, {3, 6}), y = numbers(2, {3, 6}).requires_grad_();
    counted.layer->zero_grad();
    torch::manual_seed(3);
    const auto results = again ? checkpoint(counted.both(), {x, y}) : counted.both()({x, y});
    EXPECT_FALSE(results[1].requires_grad());
    const at::Tensor loss = results[0].square().sum() + results[2].sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return std::vector{y.grad(), counted.layer->weight.grad().clone(), torch::rand({4})};
  };
  const auto kept = gradients(false);
  EXPECT_EQ(std::exchange(counted.calls, 0), 1);
  const auto again = gradients(true);
  EXPECT_EQ(counted.calls, 3);  // once for each backward
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], again[i])) << i;
}

TEST(ActivationCheckpoint, OnlyCallsInAnEvaluation) {
  Counted counted;
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(counted.both(), {numbers(1, {3, 6}), numbers(2, {3, 6})})[0].requires_grad());
  EXPECT_EQ(counted.calls, 1);
}

TEST(ActivationCheckpoint, TakesModulesWhoseInputNeedsNoGradient) {
  Linear layer(6, 4);
  checkpoint(layer, numbers(1, {3, 6})).sum().backward();
  EXPECT_TRUE(at::equal(layer->bias.grad(), at::full({4}, 3.0)));
}

TEST(ActivationCheckpoint, RefusesGradientsOfGradients) {
  Linear layer(6, 4);
  const at::Tensor loss = checkpoint(layer, numbers(1, {3, 6})).square().sum();
  EXPECT_TRUE(
      says(thrown_by([&] { loss.backward({}, {}, /*create_graph=*/true); }), {"zero::checkpoint", "create_graph"}));
}

}  // namespace zero::test::recomputation_test

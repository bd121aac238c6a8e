// Forwards inside backward, which compute activations again, as a program writes them: the bits of keeping them. What
// torch.utils.checkpoint does of it is in tests/python/recomputation_test.py.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
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

// Where a checkpoint's forward draws from. Scopes of autocast are what PyTorch's checkpoints compute again in.
class From {
 public:
  explicit From(const at::Tensor& state) : before_(generator().get_state()) { generator().set_state(state); }
  ~From() { generator().set_state(before_); }
  From(const From&) = delete;
  From& operator=(const From&) = delete;

 private:
  at::Tensor before_;
};
struct InAutocast {
  InAutocast() { at::autocast::increment_nesting(); }
  ~InAutocast() { at::autocast::decrement_nesting(); }
};

// Keeps its input alone.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
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
    at::Tensor y;
    {
      const From from(context->saved_data["state"].toTensor());
      const InAutocast scope;
      const torch::AutoGradMode enabled(true);
      y = called->function(x);
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

at::Tensor checkpoint(const Part& function, const at::Tensor& x) {
  return Checkpoint::apply(x, c10::make_intrusive<Checkpoint::Called>(function));
}

// Which parts of the network are computed again.
enum class Again { nothing, blocks, first_too, nested, scores };

struct Block : torch::nn::Module {
  explicit Block(double dropped) : p(dropped) {}
  // Between products that are cast, without parameters.
  static at::Tensor mixed(const at::Tensor& x) { return torch::softmax(x.mm(x.t()) * 0.3, -1).mm(x); }
  at::Tensor forward(const at::Tensor& x, bool scores_again) {
    const at::Tensor h = in(norm(x));
    const at::Tensor mixed_h = scores_again ? checkpoint(mixed, h) : mixed(h);
    return x + torch::dropout(out(torch::gelu(mixed_h)), p, true);
  }
  LayerNorm norm = register_module("norm", LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  Linear in = register_module("in", Linear(kWidth, kWidth)), out = register_module("out", Linear(kWidth, kWidth));
  double p;
};

struct Net : torch::nn::Module {
  explicit Net(Again parts = Again::nothing, double dropped = 0) : again(parts) {
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("b" + std::to_string(i), std::make_shared<Block>(dropped)));
  }
  at::Tensor block(std::size_t i, const at::Tensor& x) { return blocks[i]->forward(x, again == Again::scores); }
  at::Tensor block_again(std::size_t i, const at::Tensor& x) {
    return checkpoint([this, i](const at::Tensor& y) { return block(i, y); }, x);
  }
  at::Tensor begin(const at::Tensor& given) {
    const auto first_block = [this](const at::Tensor& x) { return block(0, first(x)); };
    return again == Again::first_too ? checkpoint(first_block, given.clone().requires_grad_()) : first_block(given);
  }
  at::Tensor forward(const at::Tensor& given) {
    const at::Tensor x = begin(given);
    const auto both_again = [this](const at::Tensor& y) { return block_again(2, block_again(1, y)); };
    if (again == Again::nested) return head(checkpoint(both_again, x));
    if (again == Again::blocks || again == Again::first_too) return head(both_again(x));
    return head(block(2, block(1, x)));
  }
  at::Tensor loss(std::int64_t index) { return forward(numbers(index, {8, 6})).to(at::kFloat).square().mean(); }

  Again again;
  Linear first = register_module("first", Linear(6, kWidth)), head = register_module("head", Linear(kWidth, 4));
  std::vector<std::shared_ptr<Block>> blocks;
};

using Case = std::tuple<Plan, Precision, int, Again>;
class Recomputation : public testing::TestWithParam<Case> {};

Outcome trained(const Job& job, Again again, double dropped) {
  Course<Net> course;
  course.make = [=] { return std::make_shared<Net>(again, dropped); };
  return train<Net>(job, course);
}

TEST_P(Recomputation, HasTheBitsOfKeepingActivations) {
  const auto& [plan, precision, ranks, again] = GetParam();
  Job job{.plan = plan.precision(precision).accumulate(2), .ranks = ranks};
  job.options.seed = 7;
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 64};
  const double dropped = ranks == 1 ? 0.3 : 0;  // ranks that are threads have one default generator
  EXPECT_EQ(difference(trained(job, Again::nothing, dropped), trained(job, again, dropped)), "");
}

std::string name_of(const testing::TestParamInfo<Case>& tested) {
  const auto& [plan, precision, ranks, again] = tested.param;
  constexpr std::array kAgain{"Nothing", "Blocks", "FirstToo", "Nested", "Scores"};
  return in_title(ranks, 2, precision) + in_title(plan.label()) + kAgain[static_cast<std::size_t>(again)];
}

INSTANTIATE_TEST_SUITE_P(
    All, Recomputation,
    testing::ValuesIn(covering(all_plans(),
                               std::vector{Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8},
                               std::vector{1, 2},
                               std::vector{Again::blocks, Again::first_too, Again::nested, Again::scores})),
    name_of);

// With create_graph backward's own operators run with gradients enabled, and are computed in the dtypes of the forward.
TEST(Recomputations, AreNotGradientsOfGradients) {
  const auto gradients = [](bool create_graph) {
    std::map<std::string, at::Tensor> all;
    on_ranks<Net>({.plan = Plan::zero3().precision(Precision::bf16), .ranks = 1},
                  {.make = [] { return std::make_shared<Net>(Again::nothing, 0); }},
                  [&](Net& net, Engine& engine, int) {
                    net.loss(0).backward({}, /*retain_graph=*/false, create_graph);
                    for (const auto& item : net.named_parameters()) all[item.key()] = engine.gradient(item.value());
                    engine.discard();
                  });
    return all;
  };
  const auto first = gradients(false);
  for (const auto& [name, gradient] : gradients(true)) EXPECT_TRUE(at::equal(gradient, first.at(name))) << name;
}

}  // namespace zero::test::recomputation_test

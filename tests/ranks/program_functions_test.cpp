// Functions of the program's own, torch::autograd::Function, whose forward runs without gradients: what they compute of
// parameters is part of a forward all the same, and what they draw is the program's.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "harness.h"

namespace zero::test::program_functions_test {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using torch::nn::Linear;

struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return at::matmul(x, weight.t());
  }
  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& g = outputs[0];
    return {at::matmul(g, saved[1]).to(saved[0].scalar_type()),
            at::matmul(g.t(), saved[0].to(g.scalar_type())).to(saved[1].scalar_type())};
  }
};

// One function that uses another.
struct Nested : torch::autograd::Function<Nested> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return Product::apply(x * 1, weight) + 0;
  }
  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    return Product::backward(context, outputs);
  }
};

struct Net : torch::nn::Module {
  explicit Net(std::function<at::Tensor(Net&, const at::Tensor&)> by) : first(std::move(by)) {}
  at::Tensor loss(std::int64_t index) {
    const at::Tensor hidden = at::matmul(first(*this, numbers(index, {8, 6})), numbers(77, {16, 16}) * 0.1);
    return out(torch::dropout(hidden, 0.5, true)).to(at::kFloat).square().mean();
  }
  std::function<at::Tensor(Net&, const at::Tensor&)> first;
  Linear in = register_module("in", Linear(6, 16)), out = register_module("out", Linear(16, 16));
};

std::shared_ptr<Net> made(int way) {
  return std::make_shared<Net>([way](Net& net, const at::Tensor& x) {
    switch (way) {
      case 0: return Product::apply(x, net.in->weight);
      case 1: return Nested::apply(x, net.in->weight);
      case 2: return Product::apply(x, net.in->weight.t().contiguous().t());
      case 3: return Product::apply(Product::apply(x, net.in->weight), net.out->weight);
      default: {
        {
          const at::NoGradGuard no_grad;
          static_cast<void>(Product::apply(x, net.in->weight));
        }
        const at::Tensor hidden = Product::apply(x, net.in->weight);
        return hidden + at::zeros({16}, hidden.options());
      }
    }
  });
}

// It begins the forward: what follows is cast, and draws the micro-batch's numbers.
TEST(ProgramFunctions, MayComeFirst) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16})
    for (int way = 0; way < 5; ++way) {
      SCOPED_TRACE(std::to_string(static_cast<int>(precision)) + " " + std::to_string(way));
      const Course<Net> course{.make = [way] { return made(way); }};
      Job job{.plan = Plan::ddp().precision(precision)};
      torch::manual_seed(1);
      const Outcome expected = train<Net>(job, course);
      torch::manual_seed(2);
      for (const Plan& plan : all_plans()) {
        job.plan = plan.precision(precision);
        EXPECT_EQ(difference(expected, train<Net>(job, course)), "") << plan.label();
      }
    }
}

// Another model's, and an evaluation, begin none.
TEST(ProgramFunctions, OfOthersBeginNothing) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    on_ranks<Net>({.plan = Plan::zero3().precision(precision), .ranks = 1}, {.make = [] { return made(0); }},
                  [](Net& net, Engine& engine, int) {
                    const at::Tensor x = numbers(1, {8, 6}), other = numbers(2, {16, 6}).requires_grad_();
                    torch::manual_seed(4);
                    const at::Tensor expected = torch::rand({16});
                    const auto expect_outside = [&](const at::Tensor& result) {
                      EXPECT_EQ(at::mm(result, result.t()).scalar_type(), at::kFloat);
                      EXPECT_TRUE(at::equal(torch::rand({16}), expected));
                      torch::manual_seed(4);
                    };
                    torch::manual_seed(4);
                    for (const bool by_function : {false, true}) {
                      const at::Tensor theirs = Product::apply(x, other);
                      at::Tensor target;
                      {
                        const at::NoGradGuard no_grad;
                        target = by_function ? Product::apply(x, net.in->weight) : net.in(x);
                      }
                      expect_outside(theirs - target.to(at::kFloat));
                    }
                    const at::Tensor loss = net.loss(engine.micro_batch()), kept = Product::apply(x, net.in->weight);
                    engine.backward(loss);
                    EXPECT_TRUE(engine.step().applied);
                    torch::manual_seed(4);
                    expect_outside(kept.to(at::kFloat) * 2);
                  });
}

at::Generator generator() {
  return at::detail::getDefaultCPUGenerator();
}

// Dropout whose mask backward draws once more, from where forward did.
struct DrawnTwice : torch::autograd::Function<DrawnTwice> {
  static at::Tensor mask(const at::Tensor& of) { return at::bernoulli(at::full_like(of, 0.5)) * 2; }
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->saved_data["state"] = generator().get_state();
    return x * mask(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    const at::Tensor now = generator().get_state();
    generator().set_state(context->saved_data["state"].toTensor());
    const at::Tensor result = outputs[0] * mask(outputs[0]);
    generator().set_state(now);
    return {result};
  }
};

// The same, whose mask is kept.
struct DrawnOnce : torch::autograd::Function<DrawnOnce> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const at::Tensor mask = DrawnTwice::mask(x);
    context->save_for_backward({mask});
    return x * mask;
  }
  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    return {outputs[0] * context->get_saved_variables()[0]};
  }
};

template <class Dropout>
struct Dropping : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    return out(Dropout::apply(in(numbers(index, {8, 6})))).to(at::kFloat).square().mean();
  }
  Linear in = register_module("in", Linear(6, 16)), out = register_module("out", Linear(16, 8));
};

TEST(ProgramFunctions, DrawInBackwardWhatTheyDrewInForward) {
  Job job{.ranks = 1, .optimizer = Sgd{.lr = 0.1}};
  for (const int seed : {1, 2}) {
    torch::manual_seed(seed);  // has no part in it
    for (const Plan& plan : all_plans()) {
      job.plan = plan;
      const Outcome kept = train<Dropping<DrawnOnce>>(job);
      EXPECT_EQ(difference(kept, train<Dropping<DrawnTwice>>(job)), "") << plan.label();
    }
  }
}

}  // namespace zero::test::program_functions_test

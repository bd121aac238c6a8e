// Parameters that Options::full_precision keeps in fp32 are computed with in fp32, whatever operator meets them, and
// whatever the program does with autocast.
#include <ATen/autocast_mode.h>

#include "harness.h"

namespace zero::test::full_precision_test {

using torch::nn::Linear;

struct Net : torch::nn::Module {
  at::Tensor hidden() { return in(numbers(1, {6, 8})); }
  Linear in = register_module("in", Linear(8, 12));
  at::Tensor router = register_parameter("router", torch::zeros({4, 12}));
};

using Use = std::function<at::Tensor(const at::Tensor& hidden, const at::Tensor& router)>;

struct Named {
  std::string name;
  Use use;
};

std::vector<Named> uses() {
  return {
      {"linear", [](const at::Tensor& x, const at::Tensor& w) { return at::linear(x, w); }},
      {"matmul", [](const at::Tensor& x, const at::Tensor& w) { return x.matmul(w.t()); }},
      {"mm", [](const at::Tensor& x, const at::Tensor& w) { return at::mm(w, x.t()); }},
      {"einsum",
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::einsum("bi,oi->bo", {x, w});
       }},
      {"addmm", [](const at::Tensor& x, const at::Tensor& w) { return at::addmm(w.select(1, 0), x, w.t()); }},
      {"bmm", [](const at::Tensor& x, const at::Tensor& w) { return at::bmm(x.unsqueeze(0), w.t().unsqueeze(0)); }},
      {"conv1d", [](const at::Tensor& x, const at::Tensor& w) { return at::conv1d(x.unsqueeze(1), w.unsqueeze(1)); }},
      {"layer_norm", [](const at::Tensor& x, const at::Tensor& w) { return at::layer_norm(x, {12}, w.select(0, 0)); }},
      {"product", [](const at::Tensor& x, const at::Tensor& w) { return x * w.select(0, 1); }},
      {"scale", [](const at::Tensor& x, const at::Tensor& w) { return x * w.select(0, 1).select(0, 2); }},
      {"cat",
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::cat({x, w});
       }},
      {"baddbmm",
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::baddbmm(w.select(1, 0), x.view({2, 3, 12}), w.t().expand({2, 12, 4}));
       }},
      {"addmm_",
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::zeros({6, 4}, x.options().dtype(at::kFloat)).addmm_(x, w.t());
       }},
      {"bilinear",
       [](const at::Tensor& x, const at::Tensor& w) { return at::bilinear(x, x.narrow(1, 0, 1), w.unsqueeze(2)); }},
      {"conv_transpose1d",
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::conv_transpose1d(x.reshape({6, 4, 3}), w.view({4, 3, 4}));
       }},
      {"attention",
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::scaled_dot_product_attention(x.unsqueeze(0), w.unsqueeze(0), w.unsqueeze(0));
       }},
      {"cdist", [](const at::Tensor& x, const at::Tensor& w) { return at::cdist(x, w); }},
      {"embedding",
       [](const at::Tensor& x, const at::Tensor& w) {
         return x.narrow(0, 0, 4) * at::embedding(w, at::arange(4, w.options().dtype(at::kLong)));
       }},
      {"cumsum", [](const at::Tensor& x, const at::Tensor& w) { return x + at::cumsum(w.select(0, 1), 0); }},
      {"binary_cross_entropy",
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::binary_cross_entropy(w.narrow(0, 0, 3).sigmoid(), (x.narrow(0, 0, 3) > 0).to(at::kFloat));
       }},
  };
}

// The program's own autocast around the forward and the backward, and whether it is on where the parameter is used.
struct Around {
  bool on, there;
};

class Autocast {
 public:
  explicit Autocast(bool on) : before_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, on);
  }
  ~Autocast() { at::autocast::set_autocast_enabled(at::kCPU, before_); }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool before_;
};

bool is_router(const ParameterInfo& info) {
  return info.name == "router";
}

void expect_wide(const Plan& plan, const Named& named, const Around& around) {
  SCOPED_TRACE(plan.label() + " " + named.name + (around.on ? " in autocast" : "") + (around.there ? "" : " left out"));
  const Job job{.plan = plan, .options = {.full_precision = is_router, .loss_scale = LossScale::fixed(1)}};
  on_ranks<Net>(job, {}, [&](Net& net, Engine& engine, int) {
    const at::Tensor router = engine.main_parameter(net.router).requires_grad_();
    const Autocast outer(around.on);
    const at::Tensor hidden = net.hidden();
    EXPECT_TRUE(at::isReducedFloatingType(hidden.scalar_type()));
    at::Tensor seen;
    {
      const Autocast inner(around.there && around.on);
      seen = named.use(hidden, net.router);
    }
    EXPECT_EQ(seen.scalar_type(), at::kFloat);
    engine.backward(seen.square().mean());
    const at::Tensor gradient = engine.gradient(net.router);
    {
      const Autocast none(false);
      const at::Tensor exact = named.use(hidden.detach().to(at::kFloat), router);
      EXPECT_TRUE(at::equal(seen, exact));
      exact.square().mean().backward();
    }
    EXPECT_TRUE(at::allclose(gradient, router.grad(), 1e-5, 1e-7));
    EXPECT_TRUE(engine.step().applied);
  });
}

TEST(FullPrecision, IsComputedWithWhateverTheOperator) {
  for (const Named& named : uses()) expect_wide(Plan::zero3().bf16(), named, {false, false});
}

TEST(FullPrecision, IsComputedWithWhateverTheProgramsAutocast) {
  for (const Named& named : {uses()[0], uses()[3]}) {
    for (const Plan& plan : all_plans())
      for (const Around around : {Around{true, true}, Around{true, false}}) expect_wide(plan.bf16(), named, around);
    expect_wide(Plan::zero2().precision(Precision::fp16), named, {true, true});
    expect_wide(Plan::zero2().precision(Precision::bf16_sr), named, {false, false});
  }
}

// What an operator takes for its dtype alone stays.
TEST(FullPrecision, IsLeftByTheProgramsOwnCasts) {
  const Job job{.plan = Plan::zero3().bf16(), .options = {.full_precision = is_router}};
  on_ranks<Net>(job, {}, [](Net& net, Engine&, int) {
    const at::Tensor hidden = net.hidden();
    EXPECT_EQ(net.router.to(at::kBFloat16).scalar_type(), at::kBFloat16);
    EXPECT_EQ(net.router.type_as(hidden).scalar_type(), at::kBFloat16);
    EXPECT_EQ(net.router.to(hidden).scalar_type(), at::kBFloat16);
    EXPECT_EQ(hidden.type_as(net.router).scalar_type(), at::kFloat);
    EXPECT_EQ(net.in(hidden.new_zeros({2, 8})).scalar_type(), at::kBFloat16);
  });
}

}  // namespace zero::test::full_precision_test

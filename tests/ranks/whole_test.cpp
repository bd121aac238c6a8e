// Optimizers over whole tensors: their mathematics in plain tensors, and what they leave alone.
#include <torch/torch.h>

#include <algorithm>
#include <mutex>

#include "lm.h"
#include "optimizers.h"
#include "partition/full_tensor_owners.h"

namespace zero::test::whole_test {

// A gradient that the test knows: of micro-batch i, numbers(i) in every shape.
struct Shapes : torch::nn::Module {
  Shapes() {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{6, 10}, {12, 5}, {4, 3, 2, 3}, {7}})
      register_parameter("p" + std::to_string(parameters().size()), torch::zeros(shape));
  }
  static at::Tensor slope(std::int64_t index, const at::Tensor& parameter) {
    return numbers(100 * index + parameter.size(0), parameter.sizes());
  }
  at::Tensor loss(std::int64_t index) {
    at::Tensor sum = torch::zeros({});
    for (const at::Tensor& parameter : parameters()) sum = sum + (parameter * slope(index, parameter)).sum();
    return sum;
  }
};

// The published algorithm, on whole tensors, in LibTorch's operators.
struct State {
  at::Tensor a, b;
};

void reference(const Muon& o, at::Tensor& w, const at::Tensor& g, State& s, int) {
  if (!s.a.defined()) s.a = at::zeros_like(w);
  s.a.mul_(o.momentum).add_(g, 1 - o.momentum);
  const at::Tensor u = (o.nesterov ? g * (1 - o.momentum) + s.a * o.momentum : s.a).flatten(1);
  // Exactly orthogonal; the iterations come within a third of it.
  const auto [left, values, right] = at::linalg_svd(u, /*full_matrices=*/false);
  const double rows = static_cast<double>(u.size(0)), columns = static_cast<double>(u.size(1));
  const double size =
      o.as_large_as_adamw ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1., rows / columns));
  w.mul_(1 - o.lr * o.weight_decay).sub_(at::mm(left, right).view_as(w), o.lr * size);
}

void reference(const Lamb& o, at::Tensor& w, const at::Tensor& g, State& s, int step) {
  if (!s.a.defined()) s = {at::zeros_like(w), at::zeros_like(w)};
  s.a.mul_(o.beta1).add_(g, 1 - o.beta1);
  s.b.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
  const at::Tensor m = s.a / (1 - std::pow(o.beta1, step)), v = s.b / (1 - std::pow(o.beta2, step));
  const at::Tensor r = m / (v.sqrt() + o.eps) + w * o.weight_decay;
  const double weights = w.norm().item<double>(), length = r.norm().item<double>();
  w.sub_(r, o.lr * (weights > 0 && length > 0 ? weights / length : 1));
}

// torch.optim.Adafactor's.
void reference(const Adafactor& o, at::Tensor& w, const at::Tensor& g, State& s, int step) {
  const double newest = std::pow(step, o.beta2_decay);
  const double rms = w.norm().item<double>() / std::sqrt(static_cast<double>(w.numel()));
  const double alpha = std::max(o.eps_step, rms) * std::min(o.lr, 1 / std::sqrt(static_cast<double>(step)));
  w.mul_(1 - o.lr * o.weight_decay);
  at::Tensor estimate;
  if (w.dim() < 2) {
    if (!s.a.defined()) s.a = at::zeros_like(w);
    s.a.lerp_(g.square(), newest);
    estimate = s.a.clone();
  } else {
    if (!s.a.defined()) s = {at::zeros_like(w.sum(-1, true)), at::zeros_like(w.sum(-2, true))};
    s.a.lerp_(g.square().mean(-1, true), newest);
    s.b.lerp_(g.square().mean(-2, true), newest);
    estimate = at::matmul(s.a, s.b) / s.a.mean(-2, true).clamp_min(o.eps_square);
  }
  const at::Tensor u = g / estimate.clamp_min(o.eps_square * o.eps_square).sqrt();
  const double mean = u.norm().item<double>() / std::sqrt(static_cast<double>(u.numel()));
  w.sub_(u, alpha / std::max(1.0, mean / o.clip));
}

constexpr int kSteps = 5;

// Largest difference of the weights after kSteps, over the largest change of a weight.
template <class Whole>
std::map<std::string, double> differences(const Whole& optimizer) {
  std::map<std::string, double> result;
  const Job job{Plan::zero3(), 3, optimizer, {}, kSteps};
  on_ranks<Shapes>(job, {}, [&](Shapes& model, Engine& engine, int rank) {
    std::map<std::string, at::Tensor> before = parameters_of(model, engine);
    for (int step = 0; step < kSteps; ++step) train_step(model, engine);
    std::map<std::string, at::Tensor> after = parameters_of(model, engine);
    if (rank != 0) return;
    for (auto& [name, ours] : after) {
      if (std::is_same_v<Whole, Muon> && ours.dim() < 2) continue;  // left to AdamW
      at::Tensor theirs = before.at(name).clone();
      State state;
      for (int step = 0; step < kSteps; ++step) {
        at::Tensor g = at::zeros_like(theirs);
        for (int micro = 0; micro < 3; ++micro) g += Shapes::slope(3 * step + micro, theirs) / 3;
        reference(optimizer, theirs, g, state, step + 1);
      }
      result[name] = ((ours - theirs).abs().max() / (ours - before.at(name)).abs().max()).template item<double>();
    }
  });
  return result;
}

TEST(FullTensors, LambIsThePublished) {
  for (const auto& [name, difference] : differences(Lamb{.lr = 1e-2})) EXPECT_LT(difference, 1e-4) << name;
}

TEST(FullTensors, AdafactorIsLibTorchs) {
  for (const auto& [name, difference] : differences(Adafactor{.weight_decay = 0.1}))
    EXPECT_LT(difference, 1e-4) << name;
}

TEST(FullTensors, MuonStepsAlongTheNearestOrthogonalMatrix) {
  const auto everything = [](const ParameterInfo& info) { return info.shape.size() > 1; };
  for (const bool large : {false, true})
    for (const auto& [name, difference] :
         differences(Muon{.iterations = 8, .as_large_as_adamw = large, .takes = everything}))
      EXPECT_LT(difference, 0.35) << name;
}

TEST(FullTensors, AreRefusedAnEstimateWithoutShapes) {
  const std::vector<ParameterSpec> specs{{.name = "w", .numel = 64, .unit = "u"}};
  EXPECT_THROW(static_cast<void>(estimate(Plan::zero3(), Layout(specs, 2), Muon{})), ConfigError);
}

// A parameter that gets no gradient in a step keeps its weights and moments, also where somebody owns it.
TEST(FullTensors, LeaveAloneWhatGetsNoGradient) {
  struct Sometimes : Shapes {
    at::Tensor loss(std::int64_t index) {
      const auto all = named_parameters();
      at::Tensor sum = (all["p3"] * slope(index, all["p3"])).sum();
      if (index / 2 % 2 == 0) sum = sum + (all["p0"] * slope(index, all["p0"])).sum();
      return sum;
    }
  };
  for (const Optimizer& optimizer : whole_optimizers()) {
    const Job job{Plan::ddp(), 2, optimizer, {}, 4};
    const Outcome ddp = train<Sometimes>(job);
    under_every_plan(job, [&](const Job& each) { EXPECT_EQ(difference(ddp, train<Sometimes>(each)), ""); });
  }
}

}  // namespace zero::test::whole_test

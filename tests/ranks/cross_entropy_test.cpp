// The cross entropy of a linear head in pieces: LibTorch's bits in one, its values in several, the same bits under
// every plan, and logits that never exist at once.
#include "zero/cross_entropy.h"

#include <cmath>

#include "activation_trials.h"
#include "covering.h"
#include "lm.h"
#include "memory/torch/arena_allocator.h"
#include "zero/error.h"

namespace zero::test::cross_entropy_test {

constexpr std::int64_t kIgnored = 2, kClasses = 11, kSize = 6;

struct Inputs {
  explicit Inputs(at::ScalarType dtype = at::kFloat) {
    hidden = numbers(1, {3, 5, kSize}).to(dtype).requires_grad_();
    weight = numbers(2, {kClasses, kSize}).to(dtype).requires_grad_();
    bias = numbers(3, {kClasses}).to(dtype).requires_grad_();
    targets = tokens(4, {3, 5}, kClasses);
  }
  std::vector<at::Tensor> gradients_of(const at::Tensor& loss) const {
    (loss * 3).backward();
    std::vector<at::Tensor> all{loss.detach()};
    for (const at::Tensor& each : {hidden, weight, bias}) {
      if (each.grad().defined()) all.push_back(each.grad().clone());
      each.mutable_grad() = at::Tensor();
    }
    return all;
  }
  at::Tensor by_libtorch(const CrossEntropyOptions& options) const {
    const at::Tensor logits = torch::linear(hidden, weight, options.bias).flatten(0, 1);
    const auto reduction = options.reduction == LossReduction::mean ? at::Reduction::Mean : at::Reduction::Sum;
    return at::cross_entropy_loss(logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
                                  targets.flatten(), {}, reduction, options.ignore_index, options.label_smoothing);
  }
  at::Tensor in_pieces(const CrossEntropyOptions& options) const {
    return cross_entropy(hidden, weight, targets, options);
  }

  at::Tensor hidden, weight, bias, targets;
};

using Case = std::tuple<at::ScalarType, LossReduction, double, bool>;
class CrossEntropy : public testing::TestWithParam<Case> {
 protected:
  CrossEntropyOptions options_of(const Inputs& inputs, std::int64_t pieces) const {
    const auto& [dtype, reduction, smoothing, with_bias] = GetParam();
    return {.bias = with_bias ? inputs.bias : at::Tensor(),
            .ignore_index = kIgnored,
            .label_smoothing = smoothing,
            .reduction = reduction,
            .pieces = pieces};
  }
};

TEST_P(CrossEntropy, InOnePieceHasTheBitsOfLibTorch) {
  const Inputs inputs(std::get<0>(GetParam()));
  const CrossEntropyOptions options = options_of(inputs, 1);
  const auto expected = inputs.gradients_of(inputs.by_libtorch(options));
  const auto found = inputs.gradients_of(inputs.in_pieces(options));
  ASSERT_EQ(expected.size(), found.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(expected[i], found[i])) << i;
}

TEST_P(CrossEntropy, InPiecesIsAsCloseAsRounding) {
  const at::ScalarType dtype = std::get<0>(GetParam());
  const Inputs inputs(dtype);
  Inputs exact(at::kDouble);
  exact.hidden = inputs.hidden.detach().to(at::kDouble).requires_grad_();
  exact.weight = inputs.weight.detach().to(at::kDouble).requires_grad_();
  exact.bias = inputs.bias.detach().to(at::kDouble).requires_grad_();
  const auto expected = exact.gradients_of(exact.by_libtorch(options_of(exact, 1)));
  const double rounding = dtype == at::kBFloat16 ? 2e-2 : dtype == at::kFloat ? 2e-6 : 1e-14;
  for (const std::int64_t pieces : {2, 4, 15, 99}) {
    const auto found = inputs.gradients_of(inputs.in_pieces(options_of(inputs, pieces)));
    ASSERT_EQ(expected.size(), found.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double largest = expected[i].abs().max().item<double>();
      EXPECT_LE((found[i].to(at::kDouble) - expected[i]).abs().max().item<double>(), rounding * largest)
          << pieces << " pieces, " << i;
    }
  }
}

std::string name_of_case(const testing::TestParamInfo<Case>& tested) {
  const auto& [dtype, reduction, smoothing, with_bias] = tested.param;
  return std::string(at::toString(dtype)) + (reduction == LossReduction::mean ? "Mean" : "Sum") +
         (smoothing > 0 ? "Smoothed" : "") + (with_bias ? "Biased" : "");
}

INSTANTIATE_TEST_SUITE_P(All, CrossEntropy,
                         testing::Combine(testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                                          testing::Values(LossReduction::mean, LossReduction::sum),
                                          testing::Values(0.0, 0.1), testing::Bool()),
                         name_of_case);

// Gradients of many pieces that are each rounded to 16 bits would lose what is small beside their sum.
TEST(CrossEntropies, AddUpTheWeightsGradientInFp32) {
  const at::Tensor hidden = at::ones({512, 1}, at::kBFloat16), weight = at::zeros({2, 1}, at::kBFloat16);
  at::Tensor trained = weight.clone().requires_grad_();
  cross_entropy(hidden, trained, at::zeros({512}, at::kLong), {.reduction = LossReduction::sum, .pieces = 512})
      .backward();
  EXPECT_EQ(trained.grad()[1][0].item<double>(), 256);
}

TEST(CrossEntropies, OfNothingAreNotANumber) {
  const Inputs inputs;
  const at::Tensor ignored = at::full({3, 5}, kIgnored);
  const CrossEntropyOptions options{.ignore_index = kIgnored, .pieces = 4};
  EXPECT_TRUE(std::isnan(cross_entropy(inputs.hidden, inputs.weight, ignored, options).item<double>()));
  const at::Tensor none = at::empty({0, kSize}), no_targets = at::empty({0}, at::kLong);
  EXPECT_TRUE(std::isnan(cross_entropy(none, inputs.weight, no_targets, options).item<double>()));
}

TEST(CrossEntropies, OfAnEvaluationHaveItsBits) {
  const Inputs inputs;
  const at::Tensor trained = inputs.in_pieces({.pieces = 4});
  const at::NoGradGuard no_grad;
  const at::Tensor evaluated = inputs.in_pieces({.pieces = 4});
  EXPECT_TRUE(at::equal(trained, evaluated));
  EXPECT_FALSE(evaluated.requires_grad());
}

TEST(CrossEntropies, TakeWeightsThatAreComputed) {
  const Inputs inputs;
  const auto gradients = [&](std::int64_t pieces) {
    return inputs.gradients_of(cross_entropy(inputs.hidden, inputs.weight.exp(), inputs.targets, {.pieces = pieces}));
  };
  const auto whole = gradients(1), parts = gradients(5);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(at::allclose(whole[i], parts[i], 1e-5, 1e-6)) << i;
}

struct Fault {
  const char* name;
  std::function<void(Inputs& inputs, CrossEntropyOptions& options)> make;
  std::vector<std::string> says;
};
class FaultsOfCrossEntropies : public testing::TestWithParam<Fault> {};

TEST_P(FaultsOfCrossEntropies, AreNamed) {
  Inputs inputs;
  CrossEntropyOptions options;
  GetParam().make(inputs, options);
  const std::string said = thrown_by([&] { inputs.in_pieces(options); });
  EXPECT_TRUE(says(said, {"zero::cross_entropy: "})) << said;
  EXPECT_TRUE(says(said, GetParam().says)) << said;
}

INSTANTIATE_TEST_SUITE_P(
    All, FaultsOfCrossEntropies,
    testing::Values(
        Fault{"Undefined", [](Inputs& in, auto&) { in.targets = at::Tensor(); }, {"undefined"}},
        Fault{"Weight", [](Inputs& in, auto&) { in.weight = in.bias; }, {"weight has sizes [11]", "[classes, size]"}},
        Fault{"Sizes",
              [](Inputs& in, auto&) {
                in.weight = at::ones({11, 7});
              },
              {"[3, 5, 6]", "[11, 7]"}},
        Fault{"Targets", [](Inputs& in, auto&) { in.targets = in.targets.flatten(); }, {"targets have sizes [15]"}},
        Fault{"Probabilities", [](Inputs& in, auto&) { in.targets = in.targets.to(at::kFloat); }, {"Float", "int64"}},
        Fault{"Hidden", [](Inputs& in, auto&) { in.hidden = in.hidden.to(at::kLong); }, {"hidden is of dtype Long"}},
        Fault{"Bias", [](Inputs&, auto& options) { options.bias = at::ones({3}); }, {"bias", "[11]"}},
        Fault{"Pieces", [](Inputs&, auto& options) { options.pieces = -1; }, {"-1 pieces", "1 or more"}},
        Fault{"Bytes", [](Inputs&, auto& options) { options.piece_bytes = 0; }, {"0 bytes"}},
        Fault{
            "Smoothing", [](Inputs&, auto& options) { options.label_smoothing = 1.5; }, {"label_smoothing", "0 to 1"}}),
    [](const auto& tested) { return std::string(tested.param.name); });

// Under an engine: a tied head with a bias, dropout before it.
struct SplitLm : Lm {
  explicit SplitLm(std::int64_t count, double dropout = 0) : Lm(dropout), pieces(count) {}
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {3, 7}, kVocabulary).to(bias.device());
    const at::Tensor last = norm(hidden(fixed(embed(ids.slice(1, 0, 6)))));
    return cross_entropy(last, embed->weight, ids.slice(1, 1), {.bias = bias, .ignore_index = 5, .pieces = pieces});
  }
  std::int64_t pieces;
};

Course<SplitLm> split(std::int64_t pieces, double dropout = 0) {
  return {.make = [=] { return std::make_shared<SplitLm>(pieces, dropout); }};
}

using Run = std::tuple<Plan, Precision, int, bool>;
class CrossEntropiesOfEngines : public testing::TestWithParam<Run> {};

// Four micro-batches a step, of one rank or of several.
Outcome trained(const Plan& plan, Precision precision, int ranks, std::int64_t pieces) {
  Job job{.plan = plan.precision(precision).accumulate(4 / ranks).reproducible(true), .ranks = ranks};
  if (precision == Precision::fp16) job.options.loss_scale = LossScale{.initial = 64};
  return train(job, split(pieces));
}

TEST_P(CrossEntropiesOfEngines, HaveTheSameBitsUnderEveryPlan) {
  const auto& [plan, precision, ranks, budgeted] = GetParam();
  const Outcome reference = trained(Plan::ddp(), precision, 1, 4);
  const Trials trials;
  const Plan within = budgeted ? plan.activation_budget({.share = .01}) : plan;
  EXPECT_EQ(difference(reference, trained(within, precision, ranks, 4)), "");
}

std::string name_of_run(const testing::TestParamInfo<Run>& tested) {
  const auto& [plan, precision, ranks, budgeted] = tested.param;
  return in_title(ranks, 4 / ranks, precision) + in_title(plan.label()) + (budgeted ? "Budget" : "");
}

INSTANTIATE_TEST_SUITE_P(All, CrossEntropiesOfEngines,
                         testing::ValuesIn(covering(all_plans(),
                                                    std::vector{Precision::fp32, Precision::bf16, Precision::fp16,
                                                                Precision::fp8},
                                                    std::vector{1, 2, 4}, std::vector{false, true})),
                         name_of_run);

TEST(CrossEntropiesOfAnEngine, AreCloseToTheWhole) {
  const Outcome whole = trained(Plan::zero3(), Precision::fp32, 2, 1),
                parts = trained(Plan::zero3(), Precision::fp32, 2, 4);
  EXPECT_EQ(difference(whole, parts, 1e-5), "");
  EXPECT_NE(difference(whole, parts), "");  // that it is in pieces at all
}

TEST(CrossEntropiesOfAnEngine, LeaveDropoutItsNumbers) {
  const auto losses = [](std::int64_t pieces) {
    Job job{.plan = Plan::zero3(), .ranks = 1};
    job.options.seed = 7;
    return train(job, split(pieces, 0.3)).losses;
  };
  const std::vector<double> whole = losses(1), parts = losses(4);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], parts[i], 1e-5) << i;
}

// A head of many classes, on which all else is small.
struct Wide : torch::nn::Module {
  static constexpr std::int64_t kRows = 256, kWide = 4096, kInputs = 8;
  at::Tensor loss(std::int64_t pieces) {
    const at::Tensor hidden = body(numbers(1, {kRows, kInputs}));
    return cross_entropy(hidden, head->weight, tokens(2, {kRows}, kWide), {.pieces = pieces});
  }
  torch::nn::Linear body = register_module("body", torch::nn::Linear(kInputs, kInputs));
  torch::nn::Linear head =
      register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kInputs, kWide).bias(false)));
};

std::int64_t peak_of(std::int64_t pieces, const ActivationBudget& budget = {}) {
  use_arena();
  Wide model;
  Engine engine(model, World(), Plan::zero3().activation_budget(budget), AdamW{});
  engine.backward(model.loss(pieces));
  engine.step();
  return engine.ledger()[Owner::activation].peak;
}

TEST(CrossEntropiesOfAnEngine, NeverHoldAllLogits) {
  constexpr std::int64_t logits = Wide::kRows * Wide::kWide * 4;
  EXPECT_GT(peak_of(1), 3 * logits);
  EXPECT_LT(peak_of(16), 3 * logits / 16 + logits / 4);
  EXPECT_LT(peak_of(16, {.bytes = 1 << 30}), 3 * logits / 16 + logits / 4);  // nor a gradient of the head for each
}

}  // namespace zero::test::cross_entropy_test

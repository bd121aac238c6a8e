// What holds of every program of others, whatever it does.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "activation_trials.h"
#include "covering.h"
#include "folder.h"
#include "programs.h"
#include "settings.h"

namespace zero::test::programs_test {

constexpr Precision kPrecisions[] = {Precision::fp32, Precision::bf16};

double largest(const at::Tensor& values) {
  return values.numel() == 0 ? 0 : values.to(at::kDouble).abs().max().item<double>();
}

std::string not_close(const std::string& what, double distance, double limit) {
  if (distance <= limit) return {};
  std::ostringstream text;
  text << what << ": " << distance << " apart, " << limit << " allowed";
  return text.str();
}

std::string not_close(const char* what, const std::vector<double>& plain, const std::vector<double>& run,
                      double tolerance) {
  if (plain.size() != run.size()) return std::string(what) + ": other count";
  double scale = 0, distance = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    scale = std::max(scale, std::abs(plain[i]));
    // Not std::max: what is not a number must show.
    if (!(std::abs(plain[i] - run[i]) <= distance)) distance = std::abs(plain[i] - run[i]);
  }
  return not_close(what, distance, tolerance * scale);
}

// Of values that a few steps round.
double rounding(const at::Tensor& values) {
  return (values.scalar_type() == at::kDouble ? 0x1p-51 : 0x1p-22) * largest(values);
}

// What differs from the plain run, in parameters by more than the tolerance of the change.
std::string far_from(const Outcome& plain, const std::map<std::string, at::Tensor>& start, const Outcome& run,
                     double tolerance) {
  if (std::string text = not_close("losses", plain.losses, run.losses, tolerance); !text.empty()) return text;
  if (std::string text = not_close("norms", plain.norms, run.norms, tolerance); !text.empty()) return text;
  for (const auto& [name, value] : plain.parameters) {
    const auto first = start.find(name);  // what is recorded is not a network's: its whole value counts
    const double change = largest(first == start.end() ? value : value - first->second);
    const at::Tensor other = run.parameters.at(name);
    if (other.sizes() != value.sizes()) return name + ": other shape";
    const double distance = largest(value.to(at::kDouble) - other.to(at::kDouble));
    if (std::string text = not_close(name, distance, tolerance * change + rounding(value)); !text.empty()) return text;
  }
  return {};
}

// Body of a case; what it throws fails the case and not those that follow.
template <class Body>
void in_case(const Job& job, const Body& body) {
  SCOPED_TRACE(describe(job));
  try {
    body();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    ADD_FAILURE() << text.substr(0, text.find("\nException raised from"));
  }
}

void expect_same(const std::vector<Outcome>& a, const std::vector<Outcome>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(difference(a[i], b[i]), "") << "network " << i;
}

void expect_change(const Result& plain) {
  for (std::size_t i = 0; i < plain.starts.size(); ++i) {
    double change = 0;
    for (const auto& [name, value] : plain.outcomes[i].parameters)
      change = std::max(change, largest(value - plain.starts[i].at(name)));
    EXPECT_GT(change, 1e-3) << "network " << i << " does not learn";
  }
}

void expect_close(const Result& plain, const std::vector<Outcome>& run, const Job& job, const Expected& expected) {
  ASSERT_EQ(plain.outcomes.size(), run.size());
  for (std::size_t i = 0; i < run.size(); ++i) {
    static const std::map<std::string, at::Tensor> none;
    const Outcome& outcome = plain.outcomes[i];
    const auto& start = i < plain.starts.size() ? plain.starts[i] : none;
    const std::string text = job.plan.precision() == Precision::fp32
                                 ? far_from(outcome, start, run[i], expected.tolerance)
                                 : not_close("losses", outcome.losses, run[i].losses, expected.bf16);
    EXPECT_EQ(text, "") << "network " << i;
  }
}

class Programs : public testing::TestWithParam<ProgramRow> {
 protected:
  const MakeProgram& make() const { return GetParam().make; }
  const Expected& expected() const { return GetParam().expected; }

  void expect_equal_plans(Job job, Precision precision, const Result& plain) const {
    std::vector<Outcome> ddp;
    for (const Plan& plan : all_plans()) {
      job.plan = plan.precision(precision);
      in_case(job, [&] {
        const std::vector<Outcome> run = run_on_ranks(job, make());
        if (expected().plain) expect_close(plain, run, job, expected());
        if (ddp.empty()) {
          ddp = run;
        } else {
          expect_same(ddp, run);
        }
      });
    }
  }
};

// In fp32 every plan gives what torch::optim computes; in fp32 and bf16 every plan gives ddp's bits.
TEST_P(Programs, AreThoseOfPlainLibTorchUnderEveryPlan) {
  for (const int ranks : expected().ranks) {
    const Job job{.ranks = ranks, .steps = expected().steps};
    const Result plain = expected().plain ? run_plain(job, make()) : Result{};
    expect_change(plain);
    for (const Precision precision : kPrecisions) expect_equal_plans(job, precision, plain);
  }
}

// With `reproducible`, 2 ranks with one micro-batch and with two give the bits of 1 rank with two and with four.
TEST_P(Programs, AreThoseOfOneRank) {
  if (!expected().reproducible) {
    const Job job{.plan = Plan::ddp().accumulate(2).reproducible(true), .ranks = 1};
    EXPECT_TRUE(says(thrown_by([&] { run_on_ranks(job, make()); }), {"adds exactly `accumulate` micro-batches"}));
    return;
  }
  for (const Precision precision : kPrecisions)
    for (const int micro_batches : {1, 2}) {
      const auto plan_of = [&](const Plan& plan, int accumulate) {
        return plan.precision(precision).accumulate(accumulate).reproducible(true);
      };
      Job job{.plan = plan_of(Plan::ddp(), 2 * micro_batches), .ranks = 1, .steps = expected().steps};
      in_case(job, [&] {
        const std::vector<Outcome> alone = run_on_ranks(job, make());
        for (const Plan& plan : all_plans()) {
          const Job pair{.plan = plan_of(plan, micro_batches), .ranks = 2, .steps = expected().steps};
          in_case(pair, [&] { expect_same(alone, run_on_ranks(pair, make())); });
        }
      });
    }
}

std::string title_of(const testing::TestParamInfo<ProgramRow>& tested) {
  return tested.param.name;
}

// Of the unlimited peak: where what is cheapest goes (a seed of 0), and where that is by chance.
std::vector<double> shares(std::uint32_t seed) {
  if (long_tests()) return seed == 0 ? std::vector{.75, .5, .25, .01} : std::vector{.5, .01};
  return seed == 0 ? std::vector{.5, .01} : std::vector{.25};
}

// Activations that are dropped come back with the same bits: by what is cheapest, and, from elsewhere too, by chance.
TEST_P(Programs, HaveTheSameBitsWithinAnActivationBudget) {
  const Folder folder;
  std::int64_t recomputed = 0;
  for (const Precision precision : kPrecisions)
    for (const Plan& plan : {Plan::ddp(), Plan::zero3()}) {
      Job job{.plan = plan.precision(precision), .ranks = expected().ranks.back(), .steps = 5};
      const std::vector<Outcome> without = run_on_ranks(job, make());
      job.options.disk = {.directories = {folder.path()}, .block = 16384, .depth = 4};
      for (std::uint32_t seed = 0; seed <= (long_tests() ? 60U : 1U); ++seed)
        for (const double share : shares(seed)) {
          job.plan = plan.precision(precision).activation_budget({.share = share});
          if (seed > 0) job.plan = job.plan.offload(State::activation, on_devices() ? Tier::host : Tier::disk);
          const Trials trials(seed);
          in_case(job, [&] { expect_same(without, run_on_ranks(job, make())); });
          recomputed += trials.recomputed();
        }
      // So ranks come to units at different times, of all engines.
      job.plan = plan.precision(precision).activation_budget({.share = .9});
      job.budgets = {{0, .3}, {1, .01}};
      const Trials trials;
      in_case(job, [&] { expect_same(without, run_on_ranks(job, make())); });
    }
  EXPECT_GT(recomputed, 0);
}

// Everything that can be cut is, along one dimension or the other, whether that makes sense or not.
TensorRule all_cut(int ranks) {
  return [ranks](const ParameterInfo& parameter) -> std::optional<TensorCut> {
    const auto divides = [&](std::size_t dim) {
      return dim < parameter.shape.size() && parameter.shape[dim] > 0 && parameter.shape[dim] % ranks == 0;
    };
    if (parameter.name == "table.weight" || parameter.name == "bag.weight") return {};  // of rows of a largest norm
    const bool rows_first = std::hash<std::string>{}(parameter.name) % 2 == 0;
    if (rows_first && divides(1)) return TensorCut::row;
    if (divides(0)) return TensorCut::column;
    return divides(1) ? std::optional(TensorCut::row) : std::nullopt;
  };
}

// Of ranks that add up what each has computed, in another order than a kernel.
Expected of_parts(Expected whole) {
  whole.tolerance = std::max(whole.tolerance, 1e-5);
  return whole;
}

TEST_P(Programs, ComputeOnATensorAxisWhatTheyDoWithout) {
  for (const int data : {1, 2})
    for (const Plan& plan : {Plan::ddp(), Plan::zero3()}) {
      Job job{.plan = plan, .ranks = data, .steps = expected().steps};
      const Result without{run_on_ranks(job, make()), {}};
      job.ranks *= job.tensor = 2;
      job.options.tensor = all_cut(job.tensor);
      in_case(job, [&] {
        try {
          expect_close(without, run_on_ranks(job, make()), job, of_parts(expected()));
        } catch (const std::exception& error) {
          if (!says(error.what(), {"is cut over the tensor axis, and no rank can write all of it alone"})) throw;
        }
      });
    }
}

// What is cut by itself, of those that have something to cut.
TEST_P(Programs, ComputeCutByThemselvesWhatTheyDoWithout) {
  for (const int tensor : {2, 4}) {
    Job job{.plan = Plan::zero3(), .ranks = 1, .steps = expected().steps};
    const Result without{run_on_ranks(job, make()), {}};
    job.ranks = job.tensor = tensor;
    job.automatic = true;
    in_case(job, [&] { expect_close(without, run_on_ranks(job, make()), job, of_parts(expected())); });
  }
}

INSTANTIATE_TEST_SUITE_P(Adapters, Programs, testing::ValuesIn(programs_adapters::rows()), title_of);
INSTANTIATE_TEST_SUITE_P(Adversarial, Programs, testing::ValuesIn(programs_adversarial::rows()), title_of);
INSTANTIATE_TEST_SUITE_P(Embeddings, Programs, testing::ValuesIn(programs_embeddings::rows()), title_of);
INSTANTIATE_TEST_SUITE_P(Policies, Programs, testing::ValuesIn(programs_policies::rows()), title_of);
INSTANTIATE_TEST_SUITE_P(Recurrent, Programs, testing::ValuesIn(programs_recurrent::rows()), title_of);
INSTANTIATE_TEST_SUITE_P(Targets, Programs, testing::ValuesIn(programs_targets::rows()), title_of);
INSTANTIATE_TEST_SUITE_P(Weights, Programs, testing::ValuesIn(programs_weights::rows()), title_of);
INSTANTIATE_TEST_SUITE_P(LibTorchsModules, Programs, testing::ValuesIn(modules_test::rows()), title_of);
INSTANTIATE_TEST_SUITE_P(BoundedRows, Programs, testing::ValuesIn(max_norm_test::rows()), title_of);
INSTANTIATE_TEST_SUITE_P(SharedParameters, Programs, testing::ValuesIn(sharing_test::of_shared_parameters()), title_of);
INSTANTIATE_TEST_SUITE_P(FrozenParameters, Programs, testing::ValuesIn(sharing_test::of_frozen_parameters()), title_of);
INSTANTIATE_TEST_SUITE_P(UnusedParameters, Programs, testing::ValuesIn(sharing_test::of_unused_parameters()), title_of);

}  // namespace zero::test::programs_test

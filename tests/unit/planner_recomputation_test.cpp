// Activation budgets as they are foreseen. What the engine makes of them: tests/ranks/activations_test.cpp.
#include "planner/recomputation.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "partition/activation_plan.h"
#include "planner/activation_trace.h"
#include "planner/activations.h"
#include "planner/price.h"
#include "planner/seconds.h"
#include "unit/refused.h"

namespace planner::planner_recomputation_test {

using zero::Precision;

const Pace kPace{.matrix_flops = 1e11,
                 .matrix_bandwidth = 2e10,
                 .attention_flops = 5e10,
                 .sweep_bandwidth = 1e10,
                 .operator_seconds = 3e-6};

MicroBatch work(std::int64_t layers, Precision precision = Precision::fp32) {
  models::LlamaConfig config = models::llama_preset("small");
  config.num_hidden_layers = layers;
  return {config, 2, 64, precision};
}

MicroBatch within(MicroBatch of, double share) {
  of.budget = {.share = share};
  return of;
}

// The trace is of the blocks and the operators that the estimate is of.
TEST(ActivationTraces, AreOfTheSameMicroBatch) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const bool tied : {false, true})
      for (const std::int64_t layers : {1, 3}) {
        MicroBatch of = work(layers, precision);
        of.config.tie_word_embeddings = tied;
        const zero::OperatorTrace trace = activation_trace(of, kPace).operators;
        EXPECT_EQ(zero::unlimited_peak(trace), activations(of).bytes);
        double seconds = 0;
        for (const zero::TracedOperator& each : trace.operators)
          seconds += 1e-9 * static_cast<double>(each.nanoseconds);
        EXPECT_NEAR(seconds, labour_of(of).seconds(kPace), 1e-6);
      }
}

// Also of what the program computes again.
TEST(ActivationTraces, AreOfTheSameMicroBatchInPieces) {
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    for (const std::string_view recompute : models::recomputes()) {
      MicroBatch of = work(3, precision);
      of.config.activations = {models::recompute_named(recompute), 3};
      EXPECT_EQ(zero::unlimited_peak(activation_trace(of, kPace).operators), activations(of).bytes) << recompute;
    }
}

// What is read was made before, and dies behind its last use; what lives at the end would be a leak, and what is kept
// for backward without being read there, a reader that was forgotten.
TEST(ActivationTraces, HaveEachBlockFromItsMakerToItsLastReader) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    const zero::OperatorTrace trace = activation_trace(work(2, precision), kPace).operators;
    const auto in_backward = [&](int op) { return trace.operators[static_cast<std::size_t>(op)].backward; };
    for (const zero::TracedStorage& each : trace.storages) {
      ASSERT_EQ(each.writers.size(), 1);
      for (const int reader : each.readers) EXPECT_GT(reader, each.writers.front());
      const int last = each.readers.empty() ? each.writers.front() : each.readers.back();
      EXPECT_GT(each.death, last);
      ASSERT_LE(each.death, static_cast<int>(trace.operators.size()));
      EXPECT_EQ(in_backward(each.death - 1), in_backward(last)) << trace.storages.size();
    }
  }
}

TEST(ActivationTraces, KnowUnitsWhereTheseAreGathered) {
  MicroBatch of = work(2);
  const auto uses = [&] {
    int sum = 0;
    for (const zero::TracedOperator& each : activation_trace(of, kPace).operators.operators)
      sum += static_cast<int>(each.units.size());
    return sum;
  };
  EXPECT_EQ(uses(), 0);
  of.gathers = true;
  EXPECT_GT(uses(), 2 * 2 * 9);
}

TEST(Recomputations, CostMoreTheLessThereIs) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    double before = 0;
    for (const double share : {1.0, .75, .5, .25}) {
      const auto found = recomputation(within(work(8, precision), share), kPace);
      ASSERT_TRUE(found) << share;
      if (share == 1)
        EXPECT_EQ(found->seconds, 0);
      else
        EXPECT_GT(found->share, before);
      EXPECT_NEAR(found->seconds, found->share * labour_of(work(8, precision)).seconds(kPace), 1e-9);
      before = found->share;
    }
    EXPECT_LT(before, .6);
  }
}

// Of a deep model few layers are gone through.
TEST(Recomputations, OfADeepModelAreThoseOfGoingThroughItWhole) {
  const MicroBatch deep = work(2 * kReplayedLayers);
  const zero::OperatorTrace trace = activation_trace(deep, kPace).operators;
  const std::int64_t all = zero::unlimited_peak(trace);
  double seconds = 0;
  for (const zero::TracedOperator& each : trace.operators) seconds += 1e-9 * static_cast<double>(each.nanoseconds);
  for (const double share : {.75, .5, .25}) {
    const auto whole = zero::activation_plan(trace, static_cast<std::int64_t>(share * static_cast<double>(all)));
    const auto found = recomputation(within(deep, share), kPace);
    ASSERT_TRUE(whole && found);
    EXPECT_NEAR(found->share, 1e-9 * static_cast<double>(whole->nanoseconds) / seconds, .015) << share;
  }
}

TEST(Recomputations, AreMetByTheLeastBudgetAndByNoneMuchBelow) {
  MicroBatch of = work(4);
  const std::int64_t least = least_activation_budget(of, kPace), all = activations(of).bytes;
  EXPECT_LT(least, all / 2);
  of.budget = {.bytes = least};
  EXPECT_TRUE(recomputation(of, kPace));
  of.budget = {.bytes = least - all / 50};
  EXPECT_FALSE(recomputation(of, kPace));
}

// What few layers have too little for, all of them may have enough for.
TEST(Recomputations, OfADeepModelAreMetByItsLeastBudget) {
  MicroBatch of = work(3 * kReplayedLayers);
  of.budget = {.bytes = least_activation_budget(of, kPace)};
  EXPECT_LT(of.budget.bytes, activations(work(3 * kReplayedLayers)).bytes / 3);
  EXPECT_TRUE(recomputation(of, kPace));
  of.budget.bytes /= 4;
  EXPECT_FALSE(recomputation(of, kPace));
}

TEST(Recomputations, SayWhatCannotBeMet) {
  MicroBatch of = work(3);
  EXPECT_EQ(price_of_budget(of, kPace).seconds, 0);
  of.budget = {.bytes = 1'000'000};
  const std::string said = error_of([&] { price_of_budget(of, kPace); });
  for (const std::string& each : {std::string("1000000"), std::to_string(least_activation_budget(of, kPace)),
                                  std::string("without a budget"), std::string("gradient of a weight, in backward")})
    EXPECT_NE(said.find(each), said.npos) << said;
}

// The program computes again itself, or the loss in pieces, and a budget takes what is left.
TEST(Recomputations, AreForeseenBesideWhatTheProgramComputesAgain) {
  for (const models::ActivationOptions& options : {models::ActivationOptions{.recompute = models::Recompute::selective},
                                                   {.recompute = models::Recompute::layers},
                                                   {.loss_pieces = 4},
                                                   {models::Recompute::selective, 4}}) {
    MicroBatch of = work(3);
    of.config.activations = options;
    const std::int64_t least = least_activation_budget(of, kPace), all = activations(of).bytes;
    EXPECT_LT(least, all);
    of.budget = {.bytes = least};
    EXPECT_GT(price_of_budget(of, kPace).seconds, 0);
    of.budget = {.bytes = least - all / 50};
    const std::string said = error_of([&] { price_of_budget(of, kPace); });
    EXPECT_NE(said.find("the least for this micro-batch is about " + std::to_string(least)), said.npos) << said;
  }
  MicroBatch of = work(3);
  of.seq = 2048;  // so that the logits are what needs most
  const std::int64_t whole = least_activation_budget(of, kPace);
  of.config.activations.loss_pieces = 8;
  EXPECT_LT(least_activation_budget(of, kPace), whole * 6 / 10);
}

// Where the program computes layers again in backward, these operators are a forward's, as many as the first time.
TEST(ActivationTraces, KnowForwardsInsideBackward) {
  MicroBatch of = work(2);
  of.config.activations.recompute = models::Recompute::layers;
  const ActivationTrace trace = activation_trace(of, kPace);
  const auto attentions = [&](bool backward, bool again) {
    int count = 0;
    for (std::size_t i = 0; i < trace.names.size(); ++i) {
      const zero::TracedOperator& each = trace.operators.operators[i];
      count += trace.names[i] == "attention" && each.backward == backward && each.again == again ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(attentions(false, true), 2);
  EXPECT_EQ(attentions(true, true), 2);
  EXPECT_EQ(attentions(true, false) + attentions(false, false), 0);
}

TEST(Recomputations, AreNotForeseenIn8Bits) {
  MicroBatch of = work(3);
  of.way = {.nanoseconds_a_byte = 0, .exact = false};
  EXPECT_EQ(price_of_budget(of, kPace).seconds, 0);
  of.budget = {.share = .9};
  EXPECT_FALSE(recomputation(of, kPace));
  const std::string said = error_of([&] { price_of_budget(of, kPace); });
  EXPECT_NE(said.find("cannot be foreseen"), said.npos) << said;
}

TEST(Recomputations, AreInTheSecondsOfAStep) {
  Request request{
      .shape = shape_of(models::llama_preset("small")), .batch = 2, .seq = 64, .profile = profile_named("h100")};
  const zero::Plan plan = zero::Plan::ddp().accumulate(3);
  const Cost without = price(request, plan), cost = price(request, plan.activation_budget({.share = .5}));
  EXPECT_GT(cost.again.seconds, 0);
  EXPECT_NEAR(cost.seconds - without.seconds, 3 * cost.again.seconds, 1e-9);
  EXPECT_EQ(price_bytes(request, plan.activation_budget({.share = .5})).peak, cost.peak);
  EXPECT_FALSE(micro_batch(request, zero::Plan::zero3()).gathers);
  request.ranks = 2;
  EXPECT_TRUE(micro_batch(request, zero::Plan::zero3()).gathers);
  EXPECT_FALSE(micro_batch(request, zero::Plan::zero2()).gathers);
}

// By a quick disk nothing is computed again, by a slow one all is, and neither takes longer than without.
TEST(Recomputations, ComeFromDisksWhereThatTakesLess) {
  const double again = recomputation(within(work(4), .4), kPace)->seconds;
  const auto by_disk = [&](double nanoseconds_a_byte) {
    MicroBatch of = within(work(4), .4);
    of.way = {.nanoseconds_a_byte = nanoseconds_a_byte};
    return recomputation(of, kPace)->seconds;
  };
  EXPECT_LT(by_disk(.01), .05 * again);
  EXPECT_LT(by_disk(2), .9 * again);
  EXPECT_LE(by_disk(1e6), again);
  EXPECT_GT(by_disk(1e6), .9 * again);
  MicroBatch stored = work(4);
  stored.way = {.nanoseconds_a_byte = 2};
  EXPECT_LE(least_activation_budget(stored, kPace), 1.01 * least_activation_budget(work(4), kPace));
}

TEST(Recomputations, AreByTheProfilesDisks) {
  const zero::Plan plan = zero::Plan::zero3().activation_budget({.share = .5});
  EXPECT_FALSE(stored_way(plan, {}));
  const zero::Plan disks = plan.offload(zero::State::activation, zero::Tier::disk);
  EXPECT_EQ(stored_way(disks, {}).nanoseconds_a_byte, 2);
  Profile profile;
  profile.disk_read_bandwidth = 1e9;
  profile.disk_write_bandwidth = 5e8;
  profile.host_link_bandwidth = 5e10;
  EXPECT_EQ(stored_way(disks, profile).nanoseconds_a_byte, 3);
  const zero::Plan host = plan.offload(zero::State::activation, zero::Tier::host);
  EXPECT_EQ(stored_way(host, profile).nanoseconds_a_byte, .04);
  EXPECT_FALSE(stored_way(plan.activations_in(zero::Wire::int8), {}).exact);
}

}  // namespace planner::planner_recomputation_test

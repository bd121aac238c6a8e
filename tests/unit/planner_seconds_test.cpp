#include "planner/seconds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "planner/price.h"

namespace planner::planner_seconds_test {

using zero::Plan;
using zero::Precision;

MicroBatch work(std::int64_t hidden, std::int64_t batch, std::int64_t seq) {
  models::LlamaConfig config = models::llama_preset("micro");
  config.hidden_size = hidden;
  config.intermediate_size = 3 * hidden;
  return {config, batch, seq, Precision::fp32};
}

const Pace kPace{.matrix_flops = 4e10,
                 .matrix_bandwidth = 9e9,
                 .attention_flops = 1e10,
                 .sweep_bandwidth = 3e9,
                 .operator_seconds = 4e-6};

TEST(Labour, CountsTheProductsOfForwardAndBackward) {
  const MicroBatch micro = work(256, 2, 64);
  const double weights = static_cast<double>(models::parameter_count(micro.config)) -
                         256 * (256 + 2 * 4 + 1);  // without the table that is looked up and the norms
  EXPECT_EQ(labour_of(micro).matrix_flops, 6 * weights * 2 * 64);
}

TEST(Labour, GrowsWithTheTokens) {
  const Labour one = labour_of(work(256, 1, 64)), four = labour_of(work(256, 4, 64));
  EXPECT_EQ(four.matrix_flops, 4 * one.matrix_flops);
  EXPECT_EQ(four.attention_flops, 4 * one.attention_flops);
  EXPECT_EQ(four.operators, one.operators);
  EXPECT_EQ(labour_of(work(256, 1, 128)).attention_flops, 4 * one.attention_flops);
}

TEST(Seconds, MicroBatchesWithoutReductionsDoNotWait) {
  Pace pace = kPace;
  const MicroBatch micro = work(128, 2, 64);
  const auto seconds = [&](const Plan& plan, int ranks) { return computing_seconds(micro, plan, pace, ranks); };
  const double once = seconds(Plan::ddp(), 4);
  EXPECT_DOUBLE_EQ(seconds(Plan::ddp().accumulate(4), 4), 4 * once);
  pace.waiting = 0.2;
  EXPECT_DOUBLE_EQ(seconds(Plan::ddp(), 4), once);
  EXPECT_DOUBLE_EQ(seconds(Plan::ddp().accumulate(4), 4), (4 - 3 * 0.2) * once);
  EXPECT_DOUBLE_EQ(seconds(Plan::zero1().accumulate(4), 4), (4 - 3 * 0.2) * once);
  EXPECT_DOUBLE_EQ(seconds(Plan::zero2().accumulate(4), 4), 4 * once);
  EXPECT_DOUBLE_EQ(seconds(Plan::zero3().accumulate(4), 4), 4 * once);
  EXPECT_NEAR(waiting_of(seconds(Plan::ddp().accumulate(4), 4), once, 4), 0.2, 1e-12);
  EXPECT_EQ(waiting_of(5 * once, once, 4), 0);
}

TEST(Pace, IsFoundFromMeasuredSteps) {
  std::vector<Measured> runs;
  for (const auto& [hidden, batch, seq] : {std::tuple{64, 1, 32},
                                           {64, 8, 64},
                                           {128, 2, 512},
                                           {256, 1, 64},
                                           {256, 4, 128},
                                           {512, 1, 32},
                                           {512, 2, 256},
                                           {1024, 1, 64}}) {
    const Labour labour = labour_of(work(hidden, batch, seq));
    runs.push_back({labour, labour.seconds(kPace)});
  }
  const Pace found = fitted(runs);
  for (const auto& [hidden, batch, seq] : {std::tuple{192, 3, 100}, {768, 1, 200}}) {
    const Labour labour = labour_of(work(hidden, batch, seq));
    EXPECT_NEAR(labour.seconds(found) / labour.seconds(kPace), 1, 0.01);
  }
}

// The more there is to do, the less time these runs take: what seems to cost less than nothing is free, and the rest is
// what then comes closest.
TEST(Pace, HasNoNegativeCosts) {
  std::vector<Measured> runs;
  for (const int hidden : {64, 128, 256, 512}) runs.push_back({labour_of(work(hidden, 1, 64)), 1e-3 - 5e-7 * hidden});
  const Pace found = fitted(runs);
  const auto error = [&](const Pace& pace) {
    double squares = 0;
    for (const Measured& run : runs) squares += std::pow(run.labour.seconds(pace) / run.seconds - 1, 2);
    return squares;
  };
  for (double Pace::*const rate :
       {&Pace::matrix_flops, &Pace::matrix_bandwidth, &Pace::attention_flops, &Pace::sweep_bandwidth}) {
    EXPECT_GT(found.*rate, 1e17);
    Pace other = found;
    other.*rate = 100 * kPace.*rate;
    EXPECT_GT(error(other), error(found));
  }
  for (const double factor : {0.99, 1.01}) {
    Pace other = found;
    other.operator_seconds *= factor;
    EXPECT_GT(error(other), error(found));
  }
}

// The largest model of PaLM's paper: 118 layers of 48 heads of 256 elements, and 2048 tokens. Table 3 says 46.2 % for
// its 238,300 tokens a second on 6144 chips of 275 Tflop/s.
TEST(Speed, HasTheUtilizationOfPalm) {
  models::LlamaConfig palm = models::llama_preset("micro");
  palm.num_hidden_layers = 118;
  palm.num_attention_heads = 48;
  palm.head_dim = 256;
  const std::int64_t parameters = 540'350'000'000;
  Profile tpu = profile_named("h100");
  tpu.bf16.peak_flops = 275e12;
  const MicroBatch work{palm, 1, 2048, Precision::bf16};
  const double seconds = 6144 * 2048 / 238'300.0;
  const Speed speed = speed_of(work, Plan::zero3().bf16(), parameters, seconds, tpu, 6144);
  EXPECT_NEAR(speed.tokens_per_second, 238'300, 1e-6);
  ASSERT_TRUE(speed.utilization);
  EXPECT_NEAR(*speed.utilization, 0.462, 0.001);
  EXPECT_NEAR(*speed_of(work, Plan::zero3().bf16().accumulate(2), parameters, 2 * seconds, tpu, 6144).utilization,
              *speed.utilization, 1e-12);
}

TEST(Speed, HasNoUtilizationWherePeaksAreNotKnown) {
  Profile here = profile_named("h100");
  here.fp32.peak_flops = 0;
  const MicroBatch micro = work(256, 2, 64);
  EXPECT_FALSE(speed_of(micro, Plan::ddp(), 1'000'000, 1, here, 4).utilization);
  EXPECT_EQ(speed_of(micro, Plan::ddp(), 1'000'000, 0.5, here, 4).tokens_per_second, 4 * 2 * 64 / 0.5);
}

Profile profile() {
  Profile result = profile_named("h100");
  result.fp32 = kPace;
  result.update_bandwidth = 1e9;
  result.collective_bandwidth = 2e9;
  result.collective_seconds = 1e-5;
  result.network_bandwidth = 1e8;
  result.overlap = 0;
  return result;
}

struct Costs {
  MicroBatch micro = work(256, 1, 64);
  Plan plan;
  zero::Estimate estimate;

  explicit Costs(const Plan& chosen, zero::Memory memory = zero::Memory::separate, int hosts = 1)
      : plan(chosen), estimate(planner::estimate(shape_of(micro.config), chosen, zero::AdamW{}, 4, memory, hosts)) {}
  double seconds(const Profile& machine = profile()) const { return step_seconds(micro, plan, estimate, machine, 4); }
};

TEST(StepSeconds, AreComputingUpdateAndCollectives) {
  const Costs costs(Plan::zero2().accumulate(3));
  const double computing = 3 * labour_of(costs.micro).seconds(kPace);
  const double update = static_cast<double>(costs.estimate.update_traffic) / 1e9;
  const double collectives = collective_seconds(costs.estimate, profile());
  EXPECT_GT(collectives, static_cast<double>(costs.estimate.wire.bytes()) / 2e9);
  EXPECT_DOUBLE_EQ(costs.seconds(), computing + update + collectives);
}

TEST(StepSeconds, HideCollectivesBehindComputing) {
  const Costs costs(Plan::zero3());
  Profile machine = profile();
  const double collectives = collective_seconds(costs.estimate, machine);
  const double update = static_cast<double>(costs.estimate.update_traffic) / machine.update_bandwidth;
  const auto computing = [&] { return labour_of(costs.micro).seconds(machine.fp32); };
  ASSERT_LT(0.1 * computing(), collectives) << "not all of them can hide";
  for (const double overlap : {0.0, 0.05, 0.1}) {
    machine.overlap = overlap;
    EXPECT_DOUBLE_EQ(costs.seconds(machine), computing() + update + collectives - overlap * computing());
  }
  machine.fp32.operator_seconds = 1;
  ASSERT_GT(0.1 * computing(), collectives) << "all of them can";
  EXPECT_DOUBLE_EQ(costs.seconds(machine), computing() + update);
}

TEST(StepSeconds, GatherNothingFromCommonMemory) {
  const Costs common(Plan::zero3(), zero::Memory::common), separate(Plan::zero3());
  const double gathers = static_cast<double>(separate.estimate.wire[zero::Collective::all_gather].bytes) / 2e9;
  EXPECT_LT(common.seconds(), separate.seconds() - 0.9 * gathers);
}

TEST(StepSeconds, AreStagedWhereDevicesHaveNoLinks) {
  const Costs costs(Plan::zero2());
  Profile linked = profile(), staged = profile();
  staged.collective_bandwidth = 0;
  staged.host_link_bandwidth = linked.host_link_bandwidth = 5e8;
  const double bytes = static_cast<double>(costs.estimate.wire.bytes());
  EXPECT_NEAR(costs.seconds(staged) - costs.seconds(linked), bytes / 5e8 - bytes / 2e9, 1e-9);
}

// Of the data sheet: 989 Tflop/s in bf16, of which 55 % are reached; 3.35 TB/s, of which 80 %; NVLink of 450 GB/s one
// way, of which 75 %; a network of 50 GB/s, of which 85 %.
TEST(H100, IsItsDataSheetTimesWhatIsUsuallyReached) {
  const Profile h100 = profile_named("h100");
  const Labour labour{.matrix_flops = 543.95e12, .sweep_bytes = 2.68e12, .operators = 1000};
  EXPECT_NEAR(labour.seconds(h100.bf16), 1 + 1 + 1000 * 5e-6, 1e-12);
  zero::Estimate estimate;
  estimate.wire[zero::Collective::all_gather] = {.calls = 10, .bytes = 380'000'000'000, .across_hosts = 42'500'000'000};
  EXPECT_NEAR(collective_seconds(estimate, h100), 10 * 2e-5 + 1 + 1, 1e-12);
  Profile unlinked = h100;  // PCIe of 64 GB/s one way, of which 80 %
  unlinked.collective_bandwidth = 0;
  estimate.wire[zero::Collective::all_gather] = {.calls = 1, .bytes = 51'200'000'000};
  EXPECT_NEAR(collective_seconds(estimate, unlinked), 2e-5 + 1, 1e-12);
}

TEST(StepSeconds, HaveTheLatencyOfTheNetworkWhereCallsCrossHosts) {
  Profile far = profile();
  far.network_seconds = 1e-3;
  const auto more = [&](const Costs& costs) { return costs.seconds(far) - costs.seconds(); };
  const Costs across(Plan::zero3(), zero::Memory::separate, 2);
  double calls = 0;
  for (const zero::Traffic::Entry& entry : across.estimate.wire.entries) {
    EXPECT_LE(entry.calls_across, entry.calls);
    calls += static_cast<double>(entry.calls_across);
  }
  EXPECT_GT(calls, 10);
  EXPECT_NEAR(more(across), calls * (1e-3 - 1e-5), 1e-12);
  EXPECT_EQ(more(Costs(Plan::zero3())), 0);
  far.network_seconds = 1e-6;  // within the host it takes as long at least
  EXPECT_EQ(more(across), 0);
}

TEST(StepSeconds, AreLongerOverTheNetwork) {
  const auto seconds = [](int hosts) { return Costs(Plan::ddp(), zero::Memory::separate, hosts).seconds(); };
  EXPECT_GT(seconds(4), seconds(2));
  EXPECT_GT(seconds(2), seconds(1));
}

}  // namespace planner::planner_seconds_test

// Plans with states on other tiers: what they cost, and when they are chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands/plan_command.h"
#include "partition/plan_settings.h"
#include "planner/answer_json.h"
#include "planner/fit.h"
#include "planner/offload.h"
#include "zero/error.h"

namespace planner::planner_tiers_test {

using zero::Plan;
using zero::State;
using zero::Tier;

constexpr std::int64_t kGigabyte = 1'000'000'000;

// Of a machine without devices.
Profile host() {
  Profile profile = profile_named("h100");
  profile.name = "box";
  profile.device_memory = profile.host_link_bandwidth = profile.host_bandwidth = 0;
  profile.update_bandwidth = 10e9;
  profile.disk_read_bandwidth = 2e9;
  profile.disk_write_bandwidth = 1e9;
  return profile;
}

Request request_of(std::int64_t device_memory, const Profile& profile = host()) {
  Request request{.shape = shape_of(models::llama_preset("350m")),
                  .ranks = 2,
                  .device_memory = device_memory,
                  .batch = 1,
                  .seq = 128,
                  .profile = profile};
  for (const char* preset : {"zero1", "zero3"}) request.plans.push_back(Plan::named(preset).bf16());
  return request;
}

Plan on_disk(const Plan& plan) {
  return plan.offload(State::optimizer, Tier::disk).offload(State::gradient, Tier::disk);
}

double bytes(std::int64_t count) {
  return static_cast<double>(count);
}

TEST(TierSeconds, OfAnUpdateAreThoseOfTheSlowestOfReadingUpdatingAndWriting) {
  Request request = request_of(100 * kGigabyte);
  const Cost cost = price(request, on_disk(Plan::zero3().bf16()));
  const zero::TierMoves& moved = cost.estimate.moved;
  EXPECT_DOUBLE_EQ(cost.tiers.reading, bytes(moved.update.on(Tier::disk).read) / 2e9);
  EXPECT_DOUBLE_EQ(cost.tiers.writing, bytes(moved.update.on(Tier::disk).written) / 1e9);
  EXPECT_DOUBLE_EQ(cost.tiers.updating, bytes(cost.estimate.update_traffic) / 10e9);
  EXPECT_EQ(cost.tiers.update(), cost.tiers.writing);
  request.profile.disk_write_bandwidth = 100e9;
  EXPECT_EQ(price(request, cost.plan).tiers.update(), cost.tiers.reading);
  request.profile.disk_read_bandwidth = 100e9;
  EXPECT_EQ(price(request, cost.plan).tiers.update(), cost.tiers.updating);
  EXPECT_LT(price(request, cost.plan).seconds, cost.seconds);
}

// Sums over ranks are kept beside backward; sums over micro-batches, which every rank makes alone, are waited for.
TEST(TierSeconds, OfGradientsAreBesideBackwardWhereTheyAreReducedInIt) {
  const Request request = request_of(100 * kGigabyte);
  const Cost sharded = price(request, on_disk(Plan::zero2().bf16().accumulate(2)));
  const Cost partial = price(request, on_disk(Plan::zero1().bf16().accumulate(2)));
  const auto seconds = [](const zero::TierTraffic& moved) {
    return bytes(moved.on(Tier::disk).read) / 2e9 + bytes(moved.on(Tier::disk).written) / 1e9;
  };
  EXPECT_DOUBLE_EQ(sharded.tiers.beside, seconds(sharded.estimate.moved.backward));
  EXPECT_DOUBLE_EQ(sharded.tiers.alone, seconds(sharded.estimate.moved.vote));
  EXPECT_EQ(partial.tiers.beside, 0);
  EXPECT_DOUBLE_EQ(partial.tiers.alone,
                   seconds(partial.estimate.moved.backward) + seconds(partial.estimate.moved.vote));
  Request fast = request, slow = request;
  fast.profile.disk_read_bandwidth = fast.profile.disk_write_bandwidth = 1e15;
  slow.profile.disk_write_bandwidth = 1e6;
  const double hidden = price(fast, sharded.plan).seconds, shown = price(slow, sharded.plan).seconds;
  const double computing = computing_seconds(micro_batch(slow, sharded.plan), sharded.plan,
                                             slow.profile.pace(zero::Precision::bf16), slow.mesh());
  const Cost cost = price(slow, sharded.plan);
  EXPECT_NEAR(
      shown - hidden,
      cost.tiers.beside - computing + cost.tiers.alone + cost.tiers.writing - price(fast, sharded.plan).tiers.updating,
      1e-6 * shown);
}

TEST(TierSeconds, OfADiskThatNobodyMeasuredAreNotKnown) {
  Profile profile = host();
  profile.disk_read_bandwidth = 0;
  Request request = request_of(100 * kGigabyte, profile);
  request.plans = {Plan::zero3().bf16(), on_disk(Plan::zero3().bf16())};
  const std::vector<Cost> costs = price(request);
  EXPECT_TRUE(costs[0].priced());
  EXPECT_EQ(costs[1].missing, (std::vector<std::string>{"disk_read_bandwidth"}));
  EXPECT_TRUE(std::isnan(costs[1].seconds));
  EXPECT_EQ(ranking(costs), (std::vector<std::size_t>{0, 1})) << "what is not known comes last";
  const nlohmann::json json = nlohmann::json::parse(to_json(answer(request, "350m", "adamw")));
  EXPECT_TRUE(json.at("plans").at(1).at("step_seconds").is_null());
  EXPECT_TRUE(json.at("plans").at(1).at("tokens_per_second").is_null());
  EXPECT_NE(json.at("assumed").dump().find("the profile has no disk_read_bandwidth"), std::string::npos);
  EXPECT_NE(json.at("assumed").dump().find("zero bench profile --disk DIR"), std::string::npos);
}

// On a device the host updates, and what the host holds goes over its link.
TEST(TierSeconds, OfDevicesNeedTheHosts) {
  const Profile device = profile_named("h100");
  EXPECT_TRUE(missing_for_tiers(on_disk(Plan::zero3()), device).empty());
  EXPECT_EQ(device.update_bandwidth_of(Tier::host), device.host_bandwidth);
  EXPECT_EQ(device.update_bandwidth_of(Tier::device), device.update_bandwidth);
  EXPECT_EQ(host().update_bandwidth_of(Tier::disk), host().update_bandwidth);
  Profile older = device;
  older.host_bandwidth = older.disk_read_bandwidth = older.disk_write_bandwidth = 0;
  EXPECT_EQ(missing_for_tiers(on_disk(Plan::zero3()), older),
            (std::vector<std::string>{"disk_read_bandwidth", "disk_write_bandwidth", "host_bandwidth"}));
  EXPECT_TRUE(missing_for_tiers(Plan::zero3(), older).empty());
}

// A link and a disk are busy at once.
TEST(TierSeconds, OfTheLinkAreThoseOfItsBytes) {
  Request request = request_of(100 * kGigabyte, profile_named("h100"));
  const auto on = [](Tier tier) { return on_disk(Plan::zero3().bf16()).offload(State::parameter, tier); };
  const Cost host = price(request, on(Tier::host)), disk = price(request, on(Tier::disk));
  const double link = request.profile.host_link_bandwidth;
  EXPECT_GE(host.tiers.beside, bytes(host.estimate.moved.use.on(Tier::host).read) / link);
  EXPECT_GT(disk.tiers.beside, host.tiers.beside);
  request.profile.disk_read_bandwidth = request.profile.disk_write_bandwidth = 1e18;
  const zero::TierMoves& moved = host.estimate.moved;
  EXPECT_DOUBLE_EQ(price(request, host.plan).tiers.beside,
                   (bytes(moved.use.on(Tier::host).read) + bytes(moved.backward.on(Tier::host).written)) / link);
  EXPECT_EQ(price(request, disk.plan).tiers.beside, price(request, host.plan).tiers.beside);
  request.profile.host_link_bandwidth = 0;
  EXPECT_EQ(price(request, host.plan).missing, (std::vector<std::string>{"host_link_bandwidth"}));
}

// All that a rank holds of a model may be on its host, if nothing less fits.
TEST(Fit, ChoosesTheHostForParametersOfDevices) {
  Request request = request_of(100 * kGigabyte, profile_named("h100"));
  request.chooses_tiers = true;
  request.host_memory = 100 * kGigabyte;
  request.plans = {Plan::zero3().bf16()};
  const Plan all = Plan::zero3().bf16().offload(State::optimizer, Tier::host).offload(State::gradient, Tier::host);
  request.device_memory = price(request, all).peak - 1;
  const Cost chosen = price(request)[0];
  EXPECT_EQ(offload_of(chosen.plan), "optimizer=host,gradient=host,parameter=host");
  EXPECT_TRUE(chosen.fits());
}

TEST(TierChoices, AreTheOptimizerThenGradientsThenParameters) {
  std::vector<std::string> texts;
  for (const Plan& each : tier_choices(Plan::zero2().bf16(), {Tier::disk}, {2})) texts.push_back(offload_of(each));
  ASSERT_GE(texts.size(), 2u);
  EXPECT_EQ(texts[0], "optimizer=disk");
  EXPECT_EQ(texts[1], "optimizer=disk,gradient=disk");
  for (const Plan& each : tier_choices(Plan::ddp(), {Tier::disk}, {2}))
    EXPECT_EQ(each[State::gradient].tier, Tier::device) << "which ddp cannot have on disk";
  EXPECT_TRUE(tier_choices(Plan::zero3(), {}, {2}).empty());
  for (const std::string& text : texts) EXPECT_EQ(offload_of(offloaded(Plan::zero2(), text)), text);
}

TEST(TierChoices, AreReadWithTheirShare) {
  const Plan plan = offloaded(Plan::zero2(), "optimizer=host:0.75,gradient=host");
  EXPECT_EQ(plan, Plan::zero2().offload(State::optimizer, Tier::host, 0.75).offload(State::gradient, Tier::host));
  EXPECT_EQ(offload_of(plan), "optimizer=host:0.75,gradient=host");
  EXPECT_EQ(offloaded(Plan::zero2(), offload_of(plan)), plan);
  for (const char* text : {"optimizer=host:", "optimizer=host:2", "optimizer=host:a", "optimizer=host:-1"})
    EXPECT_THROW(offloaded(Plan::zero2(), text), zero::ConfigError) << text;
}

// What stays on the device is updated there, beside what the host updates; without a device one does both.
TEST(TierSeconds, OfAShareAreThoseOfTheSlowerPart) {
  Request request = request_of(100 * kGigabyte, profile_named("h100"));
  const Plan plan = Plan::zero3().bf16().offload(State::optimizer, Tier::host, 0.5);
  for (const double host_bandwidth : {1e9, 1e15}) {
    request.profile.host_bandwidth = host_bandwidth;
    const Cost cost = price(request, plan);
    const double staying = bytes(cost.estimate.update_staying);
    const double below = bytes(cost.estimate.update_traffic) - staying;
    ASSERT_GT(staying, 0);
    EXPECT_DOUBLE_EQ(cost.tiers.updating, std::max(below / host_bandwidth, staying / request.profile.update_bandwidth));
  }
  Request without = request_of(100 * kGigabyte);
  const Cost cost = price(without, Plan::zero3().bf16().offload(State::optimizer, Tier::disk, 0.5));
  EXPECT_NEAR(cost.tiers.updating, bytes(cost.estimate.update_traffic) / 10e9, 1e-12);
}

TEST(Fit, ChoosesTiersOnlyWhereNothingElseFits) {
  Request request = request_of(100 * kGigabyte);
  request.chooses_tiers = true;
  request.disk_space = 100 * kGigabyte;
  for (const Cost& cost : price(request)) EXPECT_EQ(offload_of(cost.plan), "");
  const std::int64_t whole = price(request, request.plans[1]).peak;
  request.device_memory = whole - 1;
  const Cost chosen = price(request)[1];
  EXPECT_TRUE(chosen.fits());
  EXPECT_EQ(offload_of(chosen.plan), "optimizer=disk");
  EXPECT_EQ(chosen.estimate.on(Tier::disk).total(), chosen.estimate.state.optimizer);
  request.device_memory = chosen.peak - 1;
  EXPECT_EQ(offload_of(price(request)[1].plan).substr(0, 28), "optimizer=disk,gradient=disk");
  request.chooses_tiers = false;
  EXPECT_EQ(offload_of(price(request)[1].plan), "");
}

TEST(Fit, TakesNoMoreOfAHostsDisksThanThereIs) {
  Request request = request_of(100 * kGigabyte);
  request.chooses_tiers = true;
  request.device_memory = price(request, request.plans[1]).peak - 1;
  EXPECT_FALSE(price(request)[1].fits()) << "without --disk-space";
  const zero::StateBytes state = price(request, request.plans[1].offload(State::optimizer, Tier::disk)).estimate.state;
  request.disk_space = 2 * state.optimizer - 1;
  EXPECT_FALSE(price(request)[1].fits()) << "two ranks share it";
  request.disk_space = 2 * state.optimizer;
  EXPECT_TRUE(price(request)[1].fits());
  request.disk_space = 2 * state.optimizer - 1;
  const Cost cost = price(request, request.plans[1].offload(State::optimizer, Tier::disk));
  EXPECT_EQ(cost.disk_excess, 1);
  const std::vector<std::string> reasons = reach_of(request, cost).reasons;
  EXPECT_EQ(reasons.front(), "it needs 1 byte more disk space of each host");
}

TEST(Fit, SaysWhichTiersItChose) {
  Request request = request_of(100 * kGigabyte);
  request.chooses_tiers = true;
  request.disk_space = 100 * kGigabyte;
  request.device_memory = price(request, request.plans[1]).peak - 1;
  request.plans = {request.plans[1]};
  const Answer found = answer(request, "350m", "adamw");
  std::ostringstream text;
  cli::print_plans(text, found);
  cli::print_fit(text, found);
  EXPECT_NE(text.str().find("On other tiers, of each rank"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("zero3, optimizer on disk  disk"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find("to spare; --offload optimizer=disk --disk DIR.\n"), std::string::npos) << text.str();
  const nlohmann::json plan = nlohmann::json::parse(to_json(found)).at("plans").at(0);
  EXPECT_EQ(plan.at("offload"), "optimizer=disk");
  const std::int64_t held = found.costs[0].estimate.state.optimizer;
  EXPECT_EQ(plan.at("tiers").at(0).at("optimizer_bytes"), held);
  EXPECT_GT(plan.at("tiers").at(0).at("moved_per_step").at("optimizer").at("read"), held * 9 / 10);
}

TEST(Plans, WithoutTiersSayNothingOfThem) {
  const Answer found = answer(request_of(100 * kGigabyte), "350m", "adamw");
  std::ostringstream text;
  cli::print_plans(text, found);
  EXPECT_EQ(text.str().find("tier"), std::string::npos) << text.str();
  EXPECT_EQ(to_json(found).find("tier"), std::string::npos);
}

}  // namespace planner::planner_tiers_test

// Several hosts: the same losses as one, and what crosses between them is what was predicted, by the meter to the byte,
// and by the interface but for what protocols add.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>

#include "procs/virtual_hosts.h"
#include "procs/zero_program.h"

namespace hosts_test {

using nlohmann::json;
using procs::joined;
using procs::Result;
using procs::VirtualHosts;
using procs::Words;

struct Shape {
  int hosts;
  int ranks_per_host;
  int ranks() const { return hosts * ranks_per_host; }
};

class Hosts : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (const std::string fault = VirtualHosts::fault(); !fault.empty())
      GTEST_SKIP() << "no hosts of one's own here: " << fault;
  }

  Words training(const std::string& report, int steps, const Words& more) const {
    return procs::zero(joined(
        {"train"}, joined(folder_.small({"--steps", std::to_string(steps), "--json", folder_.path(report)}), more)));
  }

  json run_of(const std::string& report) const { return folder_.document(report).at("runs").at(0); }

  json on_one_host(const Words& more) const {
    const Result result = procs::run(joined(training("one", 4, more), {"--ranks", std::to_string(GetParam().ranks())}));
    EXPECT_EQ(result.code, 0) << result.err;
    return run_of("one");
  }

  // `on_others`: what a shell does on the hosts behind the first before it trains.
  std::vector<Result> results_on(const VirtualHosts& hosts, int steps, const Words& more,
                                 const std::string& on_others = "true") const {
    const Shape shape = GetParam();
    const Words train = training("several", steps, more);
    const Words others{"sh", "-c", on_others + " && exec \"$@\"", "sh"};
    std::vector<std::unique_ptr<procs::Program>> ranks;
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      const int host = rank / shape.ranks_per_host, local = rank % shape.ranks_per_host;
      // The port is that of a network of the test's own.
      ranks.push_back(
          std::make_unique<procs::Program>(hosts.on(host, host == 0 ? train : joined(others, train)),
                                           procs::Variables{{"RANK", std::to_string(rank)},
                                                            {"WORLD_SIZE", std::to_string(shape.ranks())},
                                                            {"LOCAL_RANK", std::to_string(local)},
                                                            {"LOCAL_WORLD_SIZE", std::to_string(shape.ranks_per_host)},
                                                            {"MASTER_ADDR", VirtualHosts::address(0)},
                                                            {"MASTER_PORT", "29500"}}));
    }
    std::vector<Result> results;
    for (const auto& rank : ranks) results.push_back(rank->finish());
    return results;
  }

  json on(const VirtualHosts& hosts, int steps, const Words& more) const {
    for (const Result& result : results_on(hosts, steps, more)) EXPECT_EQ(result.code, 0) << result.err;
    return run_of("several");
  }

  procs::Folder folder_;
};

TEST_P(Hosts, GiveTheLossesOfOneAndSendWhatWasPredicted) {
  const Shape shape = GetParam();
  const Words groups{"--shard-ranks", std::to_string(shape.ranks_per_host)};
  for (const Words& plan : {Words{"hybrid"}, {"zero3"}, {"zero3", "--keep-gathered", "host"}, {"zeropp"}}) {
    SCOPED_TRACE(plan.back());
    const VirtualHosts hosts(shape.hosts);
    const Words options = joined(groups, joined({"--plan"}, plan));
    const json few = on(hosts, 4, options);
    const std::int64_t began = hosts.bytes_sent_by(0);
    on(hosts, 4, options);
    const std::int64_t of_four = hosts.bytes_sent_by(0) - began;
    on(hosts, 24, options);
    const std::int64_t of_more = hosts.bytes_sent_by(0) - began - of_four;

    EXPECT_EQ(few.at("losses"), on_one_host(options).at("losses"));
    const bool exact = plan.front() != "zeropp";
    EXPECT_EQ(few.at("losses") == on_one_host({"--plan", "zero3"}).at("losses"), exact);
    const json& wire = few.at("wire_bytes_per_step");
    EXPECT_EQ(wire.at("predicted"), wire.at("measured"));
    for (const char* link : {"within_host", "across_hosts", "in_place"})
      EXPECT_EQ(wire.at(link).at("predicted"), wire.at(link).at("measured")) << link;
    for (const json& each : wire.value("codes", json::array()))
      for (const char* link : {"within_host", "across_hosts"})
        EXPECT_EQ(each.at(link).at("predicted"), each.at(link).at("measured")) << each;
    EXPECT_EQ(wire.value("codes", json::array()).size(), exact ? 0 : 2);
    // Each rank receives as much from other hosts as it sends there.
    const auto across = wire.at("across_hosts").at("measured").get<double>() * shape.ranks_per_host * 20;
    EXPECT_GT(across, 0);
    EXPECT_NEAR(static_cast<double>(of_more - of_four), across, 0.05 * across);
  }
}

// Nobody tells them which ranks share a host.
TEST_P(Hosts, AreFoundByRanksThatTheProgramItselfStarts) {
  const Shape shape = GetParam();
  const VirtualHosts hosts(shape.hosts);
  for (const char* store : {"made", "found"}) {
    std::vector<std::unique_ptr<procs::Program>> ranks;
    const std::string size = std::to_string(shape.ranks()), here = std::to_string(shape.ranks_per_host);
    for (int rank = 0; rank < shape.ranks(); ++rank)
      ranks.push_back(std::make_unique<procs::Program>(
          hosts.on(rank / shape.ranks_per_host,
                   {ZERO_VICTIM, "meets-again", std::to_string(rank), size, VirtualHosts::address(0), "29500", store}),
          procs::Variables{}));
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      const Result result = ranks[static_cast<std::size_t>(rank)]->finish();
      EXPECT_EQ(result.code, 0) << result.err;
      EXPECT_EQ(result.out, "met 5 times as " + std::to_string(rank) + " of " + size + ", here " +
                                std::to_string(rank % shape.ranks_per_host) + " of " + here + "\n");
    }
  }
}

class HostsThatSave : public Hosts {};

TEST_P(HostsThatSave, WriteOneCheckpointWhereTheyShareTheFolder) {
  const VirtualHosts hosts(GetParam().hosts);
  const std::string run = folder_.path("run");
  const Words saves{"--plan", "zero3", "--save-every", "4", "--save-to", run};
  const json whole = on(hosts, 8, saves);
  const Result verified = procs::run(procs::zero({"checkpoint", "verify", run}));
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  // From the middle on, on as many hosts and on one.
  std::filesystem::remove_all(run + "/step-000008");
  EXPECT_EQ(on(hosts, 8, joined(saves, {"--resume", "auto"})).at("losses"), whole.at("losses"));
  std::filesystem::remove_all(run + "/step-000008");
  const Result one = procs::run(
      joined(training("one", 8, joined(saves, {"--resume", "auto"})), {"--ranks", std::to_string(GetParam().ranks())}));
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_TRUE(procs::contains(one.out, "goes on after step 4 ")) << one.out;
  EXPECT_EQ(run_of("one").at("losses"), whole.at("losses"));
}

TEST_P(HostsThatSave, SayBeforeTheyTrainThatTheyDoNotShareTheFolder) {
  const VirtualHosts hosts(GetParam().hosts);
  const std::string folder = folder_.path("run");
  std::filesystem::create_directory(folder);
  const auto results = results_on(hosts, 4, {"--plan", "zero3", "--save-every", "2", "--save-to", folder},
                                  "mount -t tmpfs tmpfs '" + folder + "'");
  for (const Result& result : results) {
    EXPECT_NE(result.code, 0);
    EXPECT_FALSE(procs::contains(result.out, "step 1 ")) << result.out;
  }
  EXPECT_TRUE(procs::contains(results[0].err, "the ranks do not share it: rank 2")) << results[0].err;
  EXPECT_TRUE(procs::contains(results[0].err, folder)) << results[0].err;
}

class HostsWithLaunchers : public Hosts {};

constexpr const char* kToken = "of this run alone";

// One on each, which was given a token.
TEST_P(HostsWithLaunchers, TrainTogetherWhereTheyKnowTheToken) {
  const Shape shape = GetParam();
  const VirtualHosts hosts(shape.hosts);
  const std::string nodes = std::to_string(shape.hosts), here = std::to_string(shape.ranks_per_host);
  const auto launched = [&](const std::string& token_of_the_last) {
    std::vector<std::unique_ptr<procs::Program>> launchers;
    for (int host = 0; host < shape.hosts; ++host) {
      const Words launch{"launch",
                         "-n",
                         here,
                         "--nodes",
                         nodes,
                         "--node-rank",
                         std::to_string(host),
                         "--master",
                         VirtualHosts::address(0) + ":29501"};
      const std::string token = host + 1 == shape.hosts ? token_of_the_last : kToken;
      launchers.push_back(std::make_unique<procs::Program>(
          hosts.on(host, joined(procs::zero(launch), training("several", 4, {"--plan", "zero3"}))),
          procs::Variables{{"ZERO_TOKEN", token}, {"ZERO_TIMEOUT", "20"}}));
    }
    std::vector<Result> results;
    for (const auto& launcher : launchers) results.push_back(launcher->finish());
    return results;
  };
  for (const Result& result : launched(kToken)) EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(run_of("several").at("losses"), on_one_host({"--plan", "zero3"}).at("losses"));
  for (const auto& [token, says] : {std::pair("of another run, who knows", "does not know the secret"),
                                    {"", "rank 0 has a ZERO_TOKEN, and this rank has none"}}) {
    const Result refused = launched(token).back();
    EXPECT_NE(refused.code, 0);
    EXPECT_TRUE(procs::contains(refused.err, says)) << refused.err;
  }
}

// One launcher that starts the others.
TEST_P(HostsWithLaunchers, StartEachOtherByAnAgent) {
  const Shape shape = GetParam();
  const VirtualHosts hosts(shape.hosts);
  const std::string each = std::to_string(shape.ranks_per_host);
  const Words launch = hosts.launch(each, folder_.path("agent"));
  const Result result = procs::run(joined(procs::zero(launch), training("several", 4, {"--plan", "zero3"})));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(run_of("several").at("losses"), on_one_host({"--plan", "zero3"}).at("losses"));
}

TEST_P(HostsWithLaunchers, MeasureTheNetworkBetweenThem) {
  const Shape shape = GetParam();
  const VirtualHosts hosts(shape.hosts);
  const std::string each = std::to_string(shape.ranks_per_host);
  const Words launch = hosts.launch(each, folder_.path("agent"));
  const Result measured =
      procs::run(joined(procs::zero(launch),
                        procs::zero({"bench", "profile", "--precisions", "bf16", "--out", folder_.path("profile")})));
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_TRUE(procs::contains(measured.out, each + " ranks of each of 2 hosts")) << measured.out;
  EXPECT_FALSE(procs::contains(measured.out, "as given")) << measured.out;
  const json profile = folder_.document("profile");
  EXPECT_EQ(profile.at("ranks"), shape.ranks_per_host);
  EXPECT_GT(profile.at("network_seconds"), 0);
  EXPECT_NE(profile.at("network_bandwidth"), 1.25e9) << "what it is taken for where nothing is measured";
  const Result planned = procs::run(procs::zero({"plan", "--model", "tiny", "--ranks", "4", "--hosts", "2",
                                                 "--precision", "bf16", "--profile", folder_.path("profile")}));
  EXPECT_EQ(planned.code, 0) << planned.err;
}

INSTANTIATE_TEST_SUITE_P(Two, HostsThatSave, testing::Values(Shape{2, 2}), [](const auto& tested) {
  return std::to_string(tested.param.hosts) + "of" + std::to_string(tested.param.ranks_per_host);
});

INSTANTIATE_TEST_SUITE_P(Two, HostsWithLaunchers, testing::Values(Shape{2, 2}), [](const auto& tested) {
  return std::to_string(tested.param.hosts) + "of" + std::to_string(tested.param.ranks_per_host);
});

INSTANTIATE_TEST_SUITE_P(All, Hosts, testing::Values(Shape{2, 2}, Shape{3, 2}, Shape{2, 3}), [](const auto& tested) {
  return std::to_string(tested.param.hosts) + "of" + std::to_string(tested.param.ranks_per_host);
});

}  // namespace hosts_test

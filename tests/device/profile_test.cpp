// What zero bench profile measures of a device, on the simulated accelerator.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/commands/commands.h"
#include "cli/training/disk_profile.h"
#include "cli/training/rates.h"
#include "device/engines.h"
#include "device/linked.h"
#include "folder.h"
#include "planner/profile.h"

namespace zero::test::profile_test {

constexpr std::int64_t kCapacity = std::int64_t{1} << 30;

class ProfileOfADevice : public ModelsOnDevices {
 protected:
  void SetUp() override {
    ModelsOnDevices::SetUp();
    for (c10::DeviceIndex i = 0; i < accelerator::kDevices; ++i) accelerator::set_capacity(i, kCapacity);
  }
};

TEST_F(ProfileOfADevice, IsMeasuredAndReadAsOneThatWas) {
  const Folder folder;
  const std::string file = folder.path() + "/profile";
  cli::ProfileOptions options{.ranks = 1, .device = "accelerator:1", .out = file};
  ASSERT_EQ(cli::profile(options), 0);
  const planner::Profile profile = planner::profile_named(file);
  EXPECT_EQ(profile.name, "1 rank on accelerator:1 of this machine");
  EXPECT_FALSE(profile.estimated);
  EXPECT_EQ(profile.device_memory, kCapacity);
  EXPECT_GT(profile.host_bandwidth, 1e3);
  EXPECT_EQ(profile.disk_read_bandwidth, 0) << "not asked for";
  EXPECT_EQ(profile.within_host(), profile.host_link_bandwidth) << "no other rank to exchange with";
  for (const double rate : {profile.host_link_bandwidth, profile.copy_bandwidth, profile.update_bandwidth})
    EXPECT_GT(rate, 1e3);
  for (const planner::Pace& pace : {profile.fp32, profile.bf16}) {
    for (const double rate : {pace.matrix_flops, pace.matrix_bandwidth, pace.attention_flops, pace.sweep_bandwidth})
      EXPECT_GT(rate, 1e3);
    EXPECT_GT(pace.operator_seconds, 0);
  }
  EXPECT_FALSE(profile.knows(Precision::fp16)) << "not asked for";
  EXPECT_EQ(accelerator::live_blocks(1), 0);
  EXPECT_GT(accelerator::statistics(1).peak, 0);
  EXPECT_LE(accelerator::statistics(1).peak, kCapacity / 2);
  EXPECT_EQ(accelerator::statistics(0).peak, 0);
}

// While all ranks use their stores, in one folder.
TEST(ProfileOfADisk, IsThatOfTheStoresThatRanksHaveThere) {
  const Folder folder;
  run_ranks(2, [&](const World& world) {
    planner::Profile profile;
    cli::profile_disk(world, {folder.path()}, profile);
    EXPECT_GT(profile.disk_read_bandwidth, 1e6);
    EXPECT_GT(profile.disk_write_bandwidth, 1e6);
    EXPECT_EQ(world.communicator().size(), 2);
  });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// By their own collectives where they are linked, else through the host's memory.
TEST_F(ProfileOfADevice, HasWhatItsRanksExchange) {
  for (const bool links : {true, false})
    run_ranks(2, [&](const World& world) {
      const World joined = links ? linked(world) : world;
      const cli::Rates rates(joined, accelerator::device(static_cast<c10::DeviceIndex>(world.rank())));
      EXPECT_EQ(rates.memory(), kCapacity);
      EXPECT_GT(rates.collectives(), 1e3);
      EXPECT_GT(rates.collective_seconds(), 0);
    });
}

TEST_F(ProfileOfADevice, HasTheMemoryThatRanksShare) {
  run_ranks(3, [&](const World& world) {
    const cli::Rates rates(world, accelerator::device(world.rank() == 2 ? 1 : 0));
    EXPECT_EQ(rates.memory(), kCapacity / 2);
  });
}

TEST_F(ProfileOfADevice, HasNoFp8) {
  const std::string fault =
      thrown_by([] { cli::profile({.ranks = 1, .precisions = {"fp8"}, .device = "accelerator"}); });
  EXPECT_TRUE(says(fault, {"--precisions: fp8 ", "'accelerator'"}));
}

}  // namespace zero::test::profile_test

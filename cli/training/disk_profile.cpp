#include "cli/training/disk_profile.h"

#include "base/huge_pages.h"
#include "cli/commands/disk_rates.h"
#include "cli/training/collect.h"

namespace cli {
namespace {

constexpr std::int64_t kSize = std::int64_t{256} << 20;  // of a rank's file
constexpr int kRounds = 3;

}  // namespace

void profile_disk(const zero::World& world, const std::vector<std::string>& folders, planner::Profile& profile) {
  const auto allocate = [](std::size_t bytes) { return zero::in_memory(zero::huge_page_memory(bytes)); };
  const auto nobody = [](zero::Owner, int, zero::Tier, std::int64_t) {};
  zero::AddressableStore memory(zero::Tier::device, allocate, nobody);
  zero::DiskStore store({.directories = {folders.begin(), folders.end()}}, memory, nobody);
  world.communicator().barrier().wait();
  const StoreBandwidths mine = store_bandwidths(store, {whole_operations(kSize, store), kRounds});
  profile.disk_read_bandwidth = -largest(world, -mine.read);
  profile.disk_write_bandwidth = -largest(world, -mine.written);
}

}  // namespace cli

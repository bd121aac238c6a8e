#include "comm/threads.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>

#include "comm/direct.h"
#include "comm/launcher_env.h"
#include "comm/two_level.h"
#include "zero/error.h"

namespace zero {
namespace {

// Where the ranks meet. An operation is enter(), work on the peers' memory, leave(). In between
// nothing throws, so who has entered will leave: only enter() can time out or find a rank gone.
class Hub {
 public:
  struct Slot {
    Fingerprint call;
    void* data = nullptr;
    SplitCall split;
    std::shared_ptr<Hub> group;
  };

  Hub(int size, std::chrono::milliseconds timeout)
      : slots_(static_cast<std::size_t>(size)), arrived_(slots_.size(), 0), timeout_(timeout) {}

  int size() const { return static_cast<int>(slots_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }
  Slot& slot(int rank) { return slots_[static_cast<std::size_t>(rank)]; }

  void enter(int rank, Slot call);
  void sync(int rank);  // between enter() and leave(): everybody is here
  void leave(int rank) { sync(rank); }
  void retire(int rank);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void arrive(int rank);
  void meet(int rank, Lock& lock);
  void compare(int rank);
  std::string missing() const;

  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<char> arrived_;
  int arrivals_ = 0;
  std::uint64_t generation_ = 0;
  std::string broken_;  // why nobody will ever meet again
  std::chrono::milliseconds timeout_;
};

void Hub::arrive(int rank) {
  arrived_[static_cast<std::size_t>(rank)] = 1;
  if (++arrivals_ < size()) return;
  std::fill(arrived_.begin(), arrived_.end(), 0);
  arrivals_ = 0;
  ++generation_;
  changed_.notify_all();
}

std::string Hub::missing() const {
  std::string list;
  for (std::size_t r = 0; r < arrived_.size(); ++r)
    if (!arrived_[r]) list += (list.empty() ? "" : ", ") + std::to_string(r);
  return list;
}

void Hub::meet(int rank, Lock& lock) {
  const auto generation = generation_;
  arrive(rank);
  const auto met = [&] { return generation_ != generation; };
  if (changed_.wait_for(lock, timeout_, [&] { return met() || !broken_.empty(); }) && met()) return;
  if (!broken_.empty()) return;
  broken_ = "rank " + missing() + " did not arrive within " + std::to_string(timeout_.count()) + " ms";
  changed_.notify_all();
}

void Hub::enter(int rank, Slot call) {
  const std::string where = call.call.text();
  {
    Lock lock(mutex_);
    if (broken_.empty()) {
      slot(rank) = std::move(call);
      meet(rank, lock);
    }
    if (!broken_.empty())
      throw CommError("rank " + std::to_string(rank) + ": " + where + ": " + broken_,
                      "see that rank's own error, or raise ZERO_TIMEOUT");
  }
  compare(rank);
}

void Hub::compare(int rank) {
  std::vector<Fingerprint> calls;
  for (const Slot& slot : slots_) calls.push_back(slot.call);
  if (std::equal(calls.begin() + 1, calls.end(), calls.begin())) return;
  leave(rank);
  require_same(calls, rank);
}

void Hub::sync(int rank) {
  Lock lock(mutex_);
  const auto generation = generation_;
  arrive(rank);
  changed_.wait(lock, [&] { return generation_ != generation; });
}

void Hub::retire(int rank) {
  const Lock lock(mutex_);
  if (broken_.empty()) broken_ = "rank " + std::to_string(rank) + " left the group";
  changed_.notify_all();
}

class ThreadCommunicator final : public DirectCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<Hub> hub, int rank, HostMap hosts)
      : DirectCommunicator(std::move(hosts), rank), hub_(std::move(hub)), rank_(rank) {}
  ~ThreadCommunicator() override { hub_->retire(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  std::string_view backend() const override { return "threads"; }
  std::chrono::milliseconds time_limit() const override { return hub_->timeout(); }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override;

 private:
  Reach enter(const Fingerprint& call, ConstView published) override {
    hub_->enter(rank_, {call, const_cast<void*>(published.data), {}, nullptr});
    return Reach::memory;
  }
  void sync() override { hub_->sync(rank_); }
  char* peer(int rank) override { return bytes_of(hub_->slot(rank).data); }

  std::shared_ptr<Hub> hub_;
  int rank_;
};

std::shared_ptr<CommunicatorImpl> ThreadCommunicator::split(int color, int key) {
  hub_->enter(rank_, {Fingerprint::split(next_sequence()), nullptr, {color, key}, nullptr});
  std::vector<SplitCall> calls;
  for (int r = 0; r < size(); ++r) calls.push_back(hub_->slot(r).split);
  const auto members = split_group(calls, rank_);
  const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
  if (self == 0) hub_->slot(rank_).group = std::make_shared<Hub>(static_cast<int>(members.size()), hub_->timeout());
  hub_->sync(rank_);
  auto group = hub_->slot(members[0]).group;
  hub_->leave(rank_);
  return std::make_shared<ThreadCommunicator>(std::move(group), static_cast<int>(self), hosts().of(members));
}

using Group = std::vector<std::shared_ptr<CommunicatorImpl>>;

Group over_two_levels(const Group& all, const Hosts& hosts, std::chrono::milliseconds timeout) {
  std::vector<Group> inside, across;
  for (int h = 0; h < hosts.hosts; ++h) inside.push_back(thread_communicators(hosts.ranks_per_host, timeout));
  for (int l = 0; l < hosts.ranks_per_host; ++l)
    across.push_back(thread_communicators(hosts.hosts, timeout, HostMap(Hosts{hosts.hosts, 1})));
  Group ranks;
  for (int r = 0; r < hosts.size(); ++r) {
    const auto host = static_cast<std::size_t>(hosts.host(r)), local = static_cast<std::size_t>(hosts.local(r));
    ranks.push_back(
        two_level_communicator({all[static_cast<std::size_t>(r)], inside[host][local], across[local][host]}, hosts));
  }
  return ranks;
}

// As processes are joined.
Group joined(int size, const InitOptions& options) {
  const int here = options.ranks_per_host;
  if (here <= 0) return thread_communicators(size, options.timeout);
  if (size % here != 0)
    throw ConfigError(std::to_string(size) + " threads do not divide into hosts of " + std::to_string(here),
                      "change InitOptions::ranks_per_host or ZERO_RANKS_PER_HOST");
  const Hosts hosts{size / here, here};
  Group all = thread_communicators(size, options.timeout, HostMap(hosts));
  return hosts.hosts > 1 && here > 1 ? over_two_levels(all, hosts, options.timeout) : all;
}

}  // namespace

std::vector<std::shared_ptr<CommunicatorImpl>> thread_communicators(int size, std::chrono::milliseconds timeout,
                                                                    const HostMap& hosts) {
  if (size < 1) throw ConfigError("a group of " + std::to_string(size) + " threads", "at least one rank is needed");
  auto hub = std::make_shared<Hub>(size, timeout);
  std::vector<std::shared_ptr<CommunicatorImpl>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_shared<ThreadCommunicator>(hub, r, hosts));
  return ranks;
}

std::vector<World> thread_worlds(int size, const InitOptions& options) {
  const InitOptions effective = override_options(options, [](const char* name) { return std::getenv(name); });
  std::vector<World> worlds;
  for (auto& impl : joined(size, effective)) {
    const int rank = impl->rank();
    worlds.emplace_back(Communicator(std::move(impl)), rank, size);
  }
  return worlds;
}

}  // namespace zero

#include "comm/keyed_split.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "zero/error.h"

namespace zero {
namespace {

using Clock = std::chrono::steady_clock;
using Key = std::array<char, KeyedSplit::kLongestKey>;

constexpr std::chrono::milliseconds kLook{20};  // how long a rank waits for a key before it says that it has not come
constexpr int kShareOfLimit = 100;              // of the time limit, where no other thread was seen

Key packed(const std::string& key) {
  Key bytes{};
  key.copy(bytes.data(), bytes.size());
  return bytes;
}

std::string unpacked(const Key& bytes) {
  return {bytes.begin(), std::find(bytes.begin(), bytes.end(), '\0')};
}

}  // namespace

// What a rank says of the key that rank 0 told.
struct SplitQueue::Reply {
  bool here;      // a thread of the rank has asked for it
  bool several;   // threads have asked for something
  bool late;      // rank 0: the time is up
  bool explains;  // the call that would fail
  Key asks;       // that call's key
};

std::shared_ptr<CommunicatorImpl> SplitQueue::split(const Communicator& group, const KeyedSplit& wanted) {
  if (wanted.key.size() > KeyedSplit::kLongestKey) throw ConfigError("a key of too many bytes: " + wanted.key);
  Request own{wanted};
  std::unique_lock lock(mutex_);
  several_ = several_ || (last_ != std::thread::id() && last_ != std::this_thread::get_id());
  last_ = std::this_thread::get_id();
  waiting_.push_back(&own);
  changed_.notify_all();
  while (!own.done) {
    if (driven_) {
      changed_.wait(lock);
      continue;
    }
    driven_ = true;
    lock.unlock();
    drive(group, own);
    lock.lock();
    driven_ = false;
    changed_.notify_all();
  }
  if (own.error) std::rethrow_exception(own.error);
  return own.group;
}

// One round. What fails in the split itself concerns the call that it was for, on every rank; before that, `group`.
void SplitQueue::drive(const Communicator& group, Request& own) {
  Request* request = &own;
  try {
    const std::string key = key_of_rank_0(group);
    const std::vector<Reply> replies = settle(group, key, request);
    const auto all = [&](bool Reply::*what) { return std::ranges::all_of(replies, what); };
    if (!all(&Reply::here)) {
      if (all(&Reply::explains)) request->wanted.explain(group);
      std::string asked;
      for (std::size_t r = 0; r < replies.size(); ++r)
        asked += (r == 0 ? "" : "; ") + ("rank " + std::to_string(r)) + " for '" + unpacked(replies[r].asks) + "'";
      throw CommError("rank " + std::to_string(group.rank()) + ": the ranks ask for different groups: " + asked,
                      "ask for the same groups on every rank, or raise ZERO_TIMEOUT if a thread of one comes later");
    }
    request->group = group.impl()->split(0, group.rank());
    finish(*request, nullptr);
  } catch (...) {
    finish(*request, std::current_exception());
  }
}

std::string SplitQueue::key_of_rank_0(const Communicator& group) {
  Key key{};
  if (group.rank() == 0) {
    const std::lock_guard lock(mutex_);
    key = packed(waiting_.front()->wanted.key);
  }
  group.broadcast({key.data(), static_cast<std::int64_t>(key.size()), Dtype::u8}, 0).wait();
  return unpacked(key);
}

// Everybody's replies when all have the key, or rank 0 finds that the time is up: the same on every rank.
std::vector<SplitQueue::Reply> SplitQueue::settle(const Communicator& group, const std::string& key, Request*& chosen) {
  constexpr std::int64_t kBytes = sizeof(Reply);
  const auto start = Clock::now();
  const auto limit = group.impl()->time_limit();
  std::vector<Reply> replies(static_cast<std::size_t>(group.size()));
  for (bool late = false;;) {
    Reply mine = look(key, chosen);
    mine.late = late;
    group.all_gather({&mine, kBytes, Dtype::u8}, {replies.data(), kBytes * group.size(), Dtype::u8}).wait();
    if (replies[0].late || std::ranges::all_of(replies, &Reply::here)) return replies;
    const bool several = std::ranges::any_of(replies, &Reply::several);
    late = group.rank() == 0 && Clock::now() - start >= (several ? limit : limit / kShareOfLimit);
  }
}

// Waits a little for the key. Chooses the call that the round is for: the first with that key, or what was asked for
// instead.
SplitQueue::Reply SplitQueue::look(const std::string& key, Request*& chosen) {
  std::unique_lock lock(mutex_);
  auto found = waiting_.end();
  const bool here = changed_.wait_for(lock, kLook, [&] {
    found = std::ranges::find_if(waiting_, [&](const Request* each) { return each->wanted.key == key; });
    return found != waiting_.end();
  });
  chosen = here ? *found : waiting_.front();
  const KeyedSplit& wanted = chosen->wanted;
  return {here, several_, false, static_cast<bool>(wanted.explain), packed(wanted.key)};
}

void SplitQueue::finish(Request& request, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  std::erase(waiting_, &request);
  request.error = std::move(error);
  request.done = true;
}

Communicator split_by_key(const Communicator& group, const KeyedSplit& wanted) {
  return Communicator(group.impl()->splits().split(group, wanted));
}

}  // namespace zero

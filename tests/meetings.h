// Groups of threads that find each other by a name.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/threads.h"

namespace zero::test {

// Thread-safe.
class Meetings {
 public:
  // The ranks that give one name; when all have come, it is free again.
  std::shared_ptr<CommunicatorImpl> join(const std::string& name, int rank, int size,
                                         std::chrono::milliseconds limit = std::chrono::minutes(5)) {
    const std::lock_guard lock(mutex_);
    names_.insert(name);
    auto& group = groups_[name];
    if (group.empty()) group = thread_communicators(size, limit);
    auto mine = std::move(group.at(static_cast<std::size_t>(rank)));
    bool all = true;
    for (const auto& each : group) all = all && each == nullptr;
    if (all) groups_.erase(name);
    return mine;
  }
  // That were ever given.
  std::size_t names() {
    const std::lock_guard lock(mutex_);
    return names_.size();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::shared_ptr<CommunicatorImpl>>> groups_;
  std::set<std::string> names_;
};

}  // namespace zero::test

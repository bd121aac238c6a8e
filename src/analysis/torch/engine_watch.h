// What an engine tells the analyzer.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "analysis/history.h"
#include "analysis/log.h"
#include "backwards/observer.h"

namespace zero {

class EngineWatch final : public EngineObserver {
 public:
  struct Sinks {
    std::shared_ptr<MemoryLog> log;
    std::shared_ptr<History> history;
    std::function<std::int64_t()> reserved;  // by the allocators, now; on any thread
    std::function<void()> settle;            // the analyzer's tensors, on its thread
    c10::Device device;                      // whose memory is looked at
  };

  // `units`: the names, in the layout's order.
  EngineWatch(Sinks sinks, std::vector<std::string> units);

  // Throws ConfigError where it is another than the analyzer's.
  void begins(c10::Device device) override;
  void booked(Owner owner, int unit, std::int64_t change) override;
  void adopted(const void* data) override;
  int began(Activity activity, int unit) override;
  void ended(int ticket) noexcept override;

 private:
  struct Begun {
    Activity activity;
    int unit;
  };

  const std::string& unit_name(int unit) const;
  Begun take(int ticket);

  Sinks sinks_;
  std::vector<std::string> units_;  // by unit + 1
  std::thread::id home_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::map<int, Begun> begun_;  // by the span, which is the ticket
};

}  // namespace zero

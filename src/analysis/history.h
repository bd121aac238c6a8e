// Records, phases and activities, each as many as fit. No torch. Thread-safe.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "analysis/log.h"
#include "zero/memory_report.h"

namespace zero {

class History {
 public:
  void add(const MemoryRecord& record);
  void add_phase(const std::string& name, const MemoryLog::Span& span, std::int64_t reserved);
  void add(MemoryActivity activity);
  // The number of the calling thread.
  int thread();

  void fill(MemoryReport& report) const;

 private:
  // By name, in the order of their first ends.
  class Sums {
   public:
    void add(const MemoryPhase& once);
    const std::vector<MemoryPhase>& all() const { return all_; }

   private:
    std::vector<MemoryPhase> all_;
    std::map<std::string, std::size_t> places_;
  };

  mutable std::mutex mutex_;
  std::deque<MemoryRecord> records_;
  std::deque<MemoryActivity> activities_;
  std::map<std::thread::id, int> threads_;
  Sums tags_;
  Sums phases_;
};

}  // namespace zero

// Queues of tasks that run when they are waited for.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "device/accelerator.h"

namespace zero::test::accelerator {

using Key = int;  // of a stream, over all devices

// After so many tasks of a stream.
struct Point {
  Key stream;
  std::uint64_t position;
};

// Of each other stream, after how many of its tasks. What was reached need not be in it.
using Clock = std::map<Key, std::uint64_t>;

struct Event {
  Point at;
  Clock clock;
};

// Not thread-safe.
class Streams {
 public:
  using Task = std::function<void()>;

  // Throws std::logic_error in a task.
  void refuse_in_task() const;
  // Returns when it is done. In a task, too, which may be the last to hold a block.
  Point enqueue(Key stream, Task task);
  Event record(Key stream);
  void wait(Key stream, const Event& event);

  // Whether the host's wait for the point is left out.
  bool leaves_out(const Point& point) { return site() == Site::finish && !reached(point) && leaves_out_wait(); }

  bool reached(const Point& point) const;
  // Whether what is enqueued next on the stream runs after the point.
  bool ordered(Key stream, const Point& point) const;
  bool idle(Key stream) const;

  // Runs what precedes the point, on other streams, too.
  void run(const Point& point);
  void run(Key stream);
  void run_all(Key first, Key last);
  // Runs one task, of this stream or of one that it waits for.
  void advance(Key stream);

  // The first one is kept until it is thrown.
  void keep(std::exception_ptr fault) noexcept;
  void throw_fault();
  void forget_fault() { fault_ = nullptr; }

  bool eager = false;
  std::optional<std::mt19937_64> chance;  // by which tasks run as others are enqueued
  std::int64_t synchronisations = 0;
  std::map<Site, std::int64_t> waits;
  std::optional<std::pair<Site, std::optional<std::int64_t>>> left_out;
  static Site& site();                 // of this thread
  std::optional<std::int64_t> faults;  // where they are counted

 private:
  struct Item {
    Task task;
    std::optional<Point> after;
  };
  struct Queue {
    std::deque<Item> items;
    std::uint64_t enqueued = 0, done = 0;
    Clock clock;
  };

  Point push(Key stream, Item item);
  void step(Key stream);
  void run_by_chance();
  // A process has ever more streams, and a clock that names those of engines that have ended grows with each of them.
  void forget_reached(Clock& clock) const;
  bool leaves_out_wait();

  std::map<Key, Queue> queues_;
  std::set<Key> busy_;  // those with tasks
  std::exception_ptr fault_;
  bool in_task_ = false;
};

}  // namespace zero::test::accelerator

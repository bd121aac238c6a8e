// A message as the rank that receives or sends it has it, and those that are waited for together.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/net/frame.h"

namespace zero {

enum class Direction : std::uint8_t { in, out };

// What is under way together: when one message fails, all do.
struct MessageBatch {
  std::array<int, 2> left = {};                      // messages, by direction
  std::chrono::steady_clock::time_point moved = {};  // when something did last
  std::string failure = {};                          // the first
  int by = -1;                                       // the rank that it tells of
  std::condition_variable changed = {};

  int& left_in(Direction direction) { return left[static_cast<std::size_t>(direction)]; }
  void fail(const std::string& why, int rank) {
    if (failure.empty()) by = rank, failure = why;
    changed.notify_all();
  }
};

// Guarded, with its batch, by the links' mutex.
struct Message {
  MessageKey key;
  std::uint32_t mark = 0;
  char* data = nullptr;  // of one that is sent, only read
  std::int64_t bytes = 0;
  std::int64_t done = 0;
  Direction direction = Direction::in;
  bool first = false;  // before others that are as long
  MessageBatch* batch = nullptr;
  int rank = -1;                      // at the other end
  const std::string* peer = nullptr;  // what errors call it

  // Whether that was the last of it.
  bool move(std::int64_t count) {
    done += count;
    batch->moved = std::chrono::steady_clock::now();
    if (done < bytes) return false;
    if (--batch->left_in(direction) == 0) batch->changed.notify_all();
    return true;
  }
  void fail(const std::string& why) const { batch->fail(*peer + ' ' + why, rank); }
};

}  // namespace zero

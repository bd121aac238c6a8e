// An output of ours that is written to without ever waiting for whoever reads it.
#pragma once

#include <poll.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/system_files.h"

namespace cli {

class Sink {
 public:
  // Descriptor `fd` stays the caller's and as it is: whether a write waits is a property of what it refers to, which
  // other processes share.
  explicit Sink(int fd);

  // Whether what wants to put more should wait until the reader has taken some.
  bool full() const { return waiting() >= kRoom; }
  std::size_t waiting() const { return text_.size() - written_; }
  void put(std::string_view text);
  // Writes as much as the reader takes now.
  void pump();
  void watch(std::vector<pollfd>& polled) const;
  // errno of the first write that failed, 0 when none did. What such a write was to put out is lost.
  int error() const { return error_; }

 private:
  static constexpr std::size_t kRoom = std::size_t{1} << 20;

  ssize_t write_some();
  void fail(int error);

  int fd_;
  bool socket_ = false;
  zero::Descriptor own_;  // the same pipe or device, opened once more: writes to this one do not wait
  std::string text_;
  std::size_t written_ = 0;
  int error_ = 0;
};

}  // namespace cli

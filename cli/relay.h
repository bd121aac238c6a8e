// Copies what processes write into pipes onto outputs of ours: whole lines, each with its prefix.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

namespace cli {

class Relay {
 public:
  Relay() = default;
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // A pipe whose lines go to descriptor `to`. Returns the end to write to, which the caller closes.
  int open(std::string prefix, int to);
  void watch(std::vector<pollfd>& polled) const;
  // Copies the lines that are complete; never blocks on a pipe.
  void pump();
  // The same, with what follows the last line end.
  void finish();

 private:
  struct Source {
    int fd;
    int to;
    std::string prefix;
    std::string pending;
  };
  static void drain(Source& source);
  static void emit(Source& source, std::size_t end);

  std::vector<Source> sources_;
};

}  // namespace cli

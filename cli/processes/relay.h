// Copies what processes write into pipes onto outputs of ours: whole lines, each with its prefix. Whoever reads the
// outputs may stop reading: then a limited amount is kept, no more is taken from the pipes, and nothing here waits.
#pragma once

#include <poll.h>

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/processes/sink.h"

namespace cli {

class Relay {
 public:
  // A pipe whose lines go to descriptor `to`. Returns the end to write to, or nothing, with errno set.
  zero::Descriptor open(std::string prefix, int to);
  // Puts `line` after what is to be written to descriptor `to`.
  void say(int to, std::string_view line);

  void watch(std::vector<pollfd>& polled) const;
  // Copies the lines that are complete. A carriage return ends a line too: what shows progress writes no other end.
  void pump();
  // The same when nobody writes any more, with what follows the last line end. Whether all has been written.
  bool finish();

  // errno of the first write to descriptor `to` that failed; 0: none did.
  int error(int to) const;
  // How many bytes have been taken or wait in pipes, and are not written.
  std::size_t unwritten() const;

 private:
  struct Source;
  struct Output {
    Sink sink;
    const Source* returned = nullptr;  // whose line, ended by a carriage return, is the last there
  };
  struct Source {
    zero::Descriptor pipe;
    Output* output;
    std::string prefix;
    std::string pending;
    bool returned = false;  // its last line ended with a carriage return
  };

  Output& output(int to);
  static void read_some(Source& source, bool last);
  static void emit(Source& source, std::size_t end);
  void write();

  std::map<int, Output> outputs_;
  std::deque<Source> sources_;
  std::size_t first_ = 0;  // the source whose turn it is
};

}  // namespace cli

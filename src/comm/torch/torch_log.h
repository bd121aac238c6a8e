// What LibTorch says of failures beside ours: its log, and the long texts of its exceptions.
#pragma once

#include <exception>
#include <string>

namespace zero {

// While it lives, LibTorch logs nothing but what ends the process: c10d logs each failure that it throws, and each
// try, over dozens of lines. The level belongs to the whole process and is given back with the last of these, unless
// the program has changed it meanwhile. Nothing changes where `debug` (InitOptions) is set.
class QuietTorch {
 public:
  explicit QuietTorch(bool debug);
  ~QuietTorch();
  QuietTorch(const QuietTorch&) = delete;
  QuietTorch& operator=(const QuietTorch&) = delete;

 private:
  bool quiet_;
};

// The first sentence of an exception of LibTorch, without the place in its sources; all of it where `debug` is set.
std::string gist(const std::exception& error, bool debug);

}  // namespace zero

// How far something has come, on standard error: a line with a bar that is written over where that is a terminal,
// elsewhere nothing or plain lines.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>

namespace cli {

// Where progress is shown.
struct Screen {
  std::ostream* out;
  std::size_t columns = 80;  // 0: no terminal
  bool colours = false;
};
// Standard error.
Screen screen();

// On what is no terminal.
enum class Elsewhere {
  nothing,
  lines,  // one for the first that is shown, then one for each tenth
};

class Progress {
 public:
  // Of `all` that will be done.
  Progress(std::string label, std::int64_t all, Elsewhere elsewhere = Elsewhere::nothing, const Screen& on = screen());
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `text` says more.
  void show(std::int64_t done, const std::string& text);
  // Of training.
  void show(std::int64_t step, double loss, double tokens_per_second, std::int64_t bytes);
  // Takes the line away, for other output.
  void clear();

 private:
  void show_bar(const std::string& count, std::int64_t done, const std::string& text);
  void show_line(const std::string& count, std::int64_t done, const std::string& text);

  std::string label_;
  std::int64_t all_;
  Elsewhere elsewhere_;
  Screen on_;
  std::int64_t tenths_ = -1;  // of the last plain line
  bool shown_ = false;
};

// A bar for bytes that are read, which shows itself where that takes longer than a second.
class ByteProgress {
 public:
  using Clock = std::function<double()>;  // seconds
  static double steady_seconds();

  // Of `bytes` that will be read, or fewer.
  ByteProgress(const std::string& label, std::int64_t bytes, const Screen& on = screen(), Clock clock = steady_seconds);

  // What is read next.
  void begin(const std::string& what) { what_ = what; }
  // So many more bytes are done.
  void add(std::int64_t bytes);
  // Takes the line away, for other output.
  void clear() { progress_.clear(); }

 private:
  std::int64_t done_ = 0;
  std::string what_;
  Clock clock_;
  double next_;  // when it is shown again
  Progress progress_;
};

}  // namespace cli

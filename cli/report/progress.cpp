#include "cli/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>

#include "cli/report/format.h"

namespace cli {
namespace {

constexpr double kQuiet = 1, kBetween = 0.1;  // seconds, before it is shown and from one time to the next
constexpr std::int64_t kMebibyte = 1 << 20;

std::int64_t mebibytes(std::int64_t bytes) {
  return (bytes + kMebibyte - 1) / kMebibyte;
}

bool terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) && term && std::strcmp(term, "dumb") != 0;
}

bool colours() {
  const char* refused = std::getenv("NO_COLOR");
  return !refused || !*refused;
}

std::size_t columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

std::string bar(std::int64_t done, std::int64_t all, std::size_t width) {
  const auto full = static_cast<std::size_t>(done) * width / static_cast<std::size_t>(std::max<std::int64_t>(all, 1));
  return std::string(std::min(full, width), '=') + std::string(width - std::min(full, width), ' ');
}

}  // namespace

Screen screen() {
  return {&std::cerr, terminal() ? columns() : 0, colours()};
}

Progress::Progress(std::string label, std::int64_t all, Elsewhere elsewhere, const Screen& on)
    : label_(std::move(label)), all_(all), elsewhere_(elsewhere), on_(on) {}

void Progress::show(std::int64_t done, const std::string& text) {
  const std::string count = std::to_string(done) + "/" + std::to_string(all_);
  if (on_.columns > 0) {
    show_bar(count, done, text);
  } else if (elsewhere_ == Elsewhere::lines) {
    show_line(count, done, text);
  }
}

void Progress::show(std::int64_t step, double loss, double tokens_per_second, std::int64_t bytes) {
  show(step, "loss " + fixed(loss, 4) + "  " + fixed(tokens_per_second, 0) + " tokens/s  " + human_bytes(bytes));
}

void Progress::show_bar(const std::string& count, std::int64_t done, const std::string& text) {
  constexpr std::size_t width = 24;
  const std::string head = label_ + " [", tail = count + "  " + text;
  const std::size_t room = on_.columns - 1;
  if (head.size() + width + 2 + tail.size() > room) {
    *on_.out << "\r\033[K" << (label_ + " " + tail).substr(0, room) << std::flush;
  } else {
    *on_.out << "\r\033[K" << head << (on_.colours ? "\033[32m" : "") << bar(done, all_, width)
             << (on_.colours ? "\033[0m" : "") << "] " << tail << std::flush;
  }
  shown_ = true;
}

void Progress::show_line(const std::string& count, std::int64_t done, const std::string& text) {
  const std::int64_t tenths = 10 * done / std::max<std::int64_t>(all_, 1);
  if (tenths == tenths_) return;
  tenths_ = tenths;
  *on_.out << (label_ + " " + count + "  " + text + "\n") << std::flush;
}

void Progress::clear() {
  if (shown_) *on_.out << "\r\033[K" << std::flush;
  shown_ = false;
}

double ByteProgress::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ByteProgress::ByteProgress(const std::string& label, std::int64_t bytes, const Screen& on, Clock clock)
    : clock_(std::move(clock)), next_(clock_() + kQuiet), progress_(label, mebibytes(bytes), Elsewhere::nothing, on) {}

void ByteProgress::add(std::int64_t bytes) {
  done_ += bytes;
  const double now = clock_();
  if (now < next_) return;
  next_ = now + kBetween;
  progress_.show(mebibytes(done_), "MiB  " + what_);
}

}  // namespace cli

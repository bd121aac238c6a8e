#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "format.h"

namespace cli {
namespace {

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

Progress::Progress(std::string label, std::int64_t steps)
    : label_(std::move(label)), steps_(steps), on_(terminal()), colour_(colours()) {}

void Progress::show(std::int64_t step, double loss, double tokens_per_second, std::int64_t bytes) {
  if (!on_) return;
  constexpr std::size_t width = 24;
  const std::string text = "] " + std::to_string(step) + "/" + std::to_string(steps_) + "  loss " + fixed(loss, 4) +
                           "  " + fixed(tokens_per_second, 0) + " tokens/s  " + human_bytes(bytes);
  const std::string head = label_ + " [";
  const std::size_t room = columns() - 1;
  if (head.size() + width + text.size() > room) {
    std::cerr << "\r\033[K" << (label_ + " " + text.substr(2)).substr(0, room) << std::flush;
  } else {
    std::cerr << "\r\033[K" << head << (colour_ ? "\033[32m" : "") << bar(step, steps_, width)
              << (colour_ ? "\033[0m" : "") << text << std::flush;
  }
  shown_ = true;
}

void Progress::clear() {
  if (shown_) std::cerr << "\r\033[K" << std::flush;
  shown_ = false;
}

}  // namespace cli

#include "cli/report/byte_progress.h"

#include <chrono>
#include <utility>

namespace cli {
namespace {

constexpr double kQuiet = 1, kBetween = 0.1;  // seconds, before it is shown and from one time to the next
constexpr std::int64_t kMebibyte = 1 << 20;

std::int64_t mebibytes(std::int64_t bytes) {
  return (bytes + kMebibyte - 1) / kMebibyte;
}

}  // namespace

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

#include "comm/torch/torch_log.h"

#include <c10/util/Logging.h>

#include <atomic>
#include <mutex>
#include <string_view>

namespace zero {
namespace {

constexpr int kQuiet = c10::GLOG_FATAL;

struct Level {
  std::mutex mutex;
  int quiet = 0;  // how many want it
  int before = 0;
};

Level& level() {
  static Level* const level = new Level;  // outlives threads that are left behind at exit
  return *level;
}

// LibTorch reads it on any thread.
std::atomic_ref<int> torch_level() {
  return std::atomic_ref(FLAGS_caffe2_log_level);
}

}  // namespace

QuietTorch::QuietTorch(bool debug) : quiet_(!debug) {
  if (!quiet_) return;
  const std::lock_guard lock(level().mutex);
  if (level().quiet++ == 0) level().before = torch_level().exchange(kQuiet);
}

QuietTorch::~QuietTorch() {
  if (!quiet_) return;
  const std::lock_guard lock(level().mutex);
  int expected = kQuiet;
  if (--level().quiet == 0) torch_level().compare_exchange_strong(expected, level().before);
}

std::string gist(const std::exception& error, bool debug) {
  const std::string_view text(error.what());
  if (debug) return std::string(text);
  std::string_view view = text.substr(0, text.find('\n'));
  if (const auto place = view.find("] "); view.starts_with('[') && place != view.npos) view.remove_prefix(place + 2);
  return std::string(view.substr(0, view.find(". ")));
}

}  // namespace zero

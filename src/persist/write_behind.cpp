#include "persist/write_behind.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/huge_pages.h"

namespace zero {

WriteBehind::WriteBehind(std::unique_ptr<WritableFile> file, std::int64_t bytes)
    : file_(std::move(file)),
      stretch_(std::clamp((bytes + kDirectPage - 1) / kDirectPage * kDirectPage, kDirectPage, kStretch)) {}

void WriteBehind::gather(const char* bytes, std::int64_t count) {
  while (count > 0) {
    std::shared_ptr<void>& memory = memory_.front();
    if (!memory) memory = huge_page_memory(static_cast<std::size_t>(stretch_));
    const std::int64_t some = std::min(count, stretch_ - filled_);
    std::memcpy(static_cast<char*>(memory.get()) + filled_, bytes, static_cast<std::size_t>(some));
    filled_ += some;
    bytes += some;
    count -= some;
    if (filled_ == stretch_) send();
  }
}

void WriteBehind::send() {
  pass(static_cast<const char*>(memory_.front().get()), std::exchange(filled_, 0));
  std::swap(memory_.front(), memory_.back());
}

void WriteBehind::pass(const char* bytes, std::int64_t count) {
  before_.wait();
  before_ = writer_.submit([this, bytes, count] { file_->write(bytes, count); });
}

void WriteBehind::finish() {
  if (filled_ > 0) send();
  before_.wait();
  file_->sync();
  file_->close();
}

}  // namespace zero

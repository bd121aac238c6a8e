#include "comm/net/outbox.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace zero {

void Outbox::add(Message& message) {
  if (message.bytes <= kLongestWhole) return line_up(message);
  waiting_.emplace(message.key, &message);
  if (const auto early = early_.extract(message.key)) ready(early.mapped());
}

std::string Outbox::ready(const FrameHeader& header) {
  const auto found = waiting_.find(header.key);
  if (found == waiting_.end()) {
    const bool once = early_.emplace(header.key, header).second;
    return once ? "" : "asked twice for one message";
  }
  Message& message = *found->second;
  waiting_.erase(found);
  if (message.mark != header.mark || message.bytes != header.at) {
    message.fail("called something else");
    return {};
  }
  line_up(message);
  return {};
}

void Outbox::line_up(Message& message) {
  const auto place = [](const Message& each) { return each.bytes <= kLongestWhole ? 0 : each.first ? 1 : 2; };
  sending_.insert(std::ranges::find_if(sending_, [&](const Message* each) { return place(*each) > place(message); }),
                  &message);
}

void Outbox::say(FrameHeader header, const std::string& words) {
  header.length = static_cast<std::uint32_t>(std::min<std::int64_t>(std::ssize(words), kLongestReason));
  words_.push_back({header, words.substr(0, header.length)});
}

void Outbox::drop(const Message& message) {
  std::erase(sending_, &message);
  std::erase_if(waiting_, [&](const auto& each) { return each.second == &message; });
  if (of_ != &message) return;
  kept_.assign(data_, header_.length);
  data_ = kept_.data();
  of_ = nullptr;
}

void Outbox::forget(std::uint64_t channel) {
  std::erase_if(early_, [&](const auto& each) { return each.first.channel == channel; });
}

void Outbox::begin(const FrameHeader& header, const char* data, Message* message) {
  header_ = header;
  data_ = data;
  of_ = message;
  frame_bytes_ = sizeof header_ + header.length;
  written_ = 0;
}

bool Outbox::next_frame() {
  if (!words_.empty()) {
    kept_ = std::move(words_.front().text);
    begin(words_.front().header, kept_.data(), nullptr);
    words_.pop_front();
    return true;
  }
  if (sending_.empty()) return false;
  Message& message = *sending_.front();
  const bool whole = message.bytes <= kLongestWhole;
  const std::int64_t length = std::min(message.bytes - message.done, kLongestPart);
  begin({.kind = whole ? FrameKind::whole : FrameKind::part,
         .key = message.key,
         .at = message.done,
         .length = static_cast<std::uint32_t>(length),
         .mark = message.mark},
        message.data + message.done, &message);
  return true;
}

void Outbox::end_frame() {
  if (of_ == nullptr) return;
  Message& message = *std::exchange(of_, nullptr);
  if (message.move(header_.length)) std::erase(sending_, &message);
}

bool Outbox::write(Sockets& sockets, int socket) {
  while (frame_left() > 0 || next_frame()) {
    const std::size_t head = sizeof header_ - std::min(written_, sizeof header_);
    const std::size_t behind = written_ - std::min(written_, sizeof header_);
    const std::array parts{iovec{reinterpret_cast<char*>(&header_) + (sizeof header_ - head), head},
                           iovec{const_cast<char*>(data_) + behind, header_.length - behind}};
    const auto sent = sockets.send(socket, std::span(parts).subspan(head == 0 ? 1 : 0));
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (sent < 0) throw std::system_error(errno, std::generic_category());
    written_ += static_cast<std::size_t>(sent);
    if (frame_left() == 0) end_frame();
  }
  return true;
}

}  // namespace zero

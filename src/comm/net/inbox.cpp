#include "comm/net/inbox.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace zero {
namespace {

constexpr int kReads = 16;  // after which others have their turn

constexpr const char* kDifferent = "called something else";

std::int64_t longest(FrameKind kind) {
  switch (kind) {
    case FrameKind::whole: return kLongestWhole;
    case FrameKind::part: return kLongestPart;
    case FrameKind::failed: return kLongestReason;
    case FrameKind::ready:
    case FrameKind::waits:
    case FrameKind::left: return 0;
  }
  throw BadFrame("sent a frame of a kind that there is not");
}

}  // namespace

void Inbox::expect(Message& message) {
  const auto early = early_.extract(message.key);
  if (!early) {
    expected_.emplace(message.key, &message);
    return;
  }
  early_bytes_ -= std::ssize(early.mapped().bytes);
  take(message, early.mapped());
}

// Once all of it is there.
bool Inbox::take(Message& message, const Early& whole) {
  if (message.mark != whole.header.mark || std::ssize(whole.bytes) != message.bytes) {
    message.fail(kDifferent);
    return false;
  }
  std::memcpy(message.data, whole.bytes.data(), whole.bytes.size());
  return message.move(message.bytes);
}

void Inbox::drop(const Message& message) {
  if (std::erase_if(expected_, [&](const auto& each) { return each.second == &message; }) > 0) end(message.key);
  if (of_ != &message) return;
  of_ = nullptr;
  kept_.resize(left_);
  to_ = kept_.data();
}

void Inbox::end(const MessageKey& call) {
  const auto [known, first] = ended_.emplace(call.channel, call.call);
  known->second = std::min(known->second, call.call);
  std::erase_if(early_, [&](const auto& each) {
    if (!ended(each.first)) return false;
    early_bytes_ -= std::ssize(each.second.bytes);
    return true;
  });
}

bool Inbox::ended(const MessageKey& key) const {
  const auto known = ended_.find(key.channel);
  return known != ended_.end() && known->second <= key.call;
}

bool Inbox::read(Sockets& sockets, int socket, FrameHandler& handler) {
  for (int reads = 0; reads < kReads; ++reads) {
    const iovec part = left_ > 0
                           ? iovec{to_, left_}
                           : iovec{reinterpret_cast<char*>(&header_) + header_bytes_, sizeof header_ - header_bytes_};
    const auto got = sockets.receive(socket, std::span(&part, 1));
    if (got == 0) return false;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got < 0) throw std::system_error(errno, std::generic_category());
    advance(static_cast<std::size_t>(got), handler);
  }
  return true;
}

void Inbox::advance(std::size_t bytes, FrameHandler& handler) {
  if (left_ == 0) {
    header_bytes_ += bytes;
    if (header_bytes_ < sizeof header_) return;
    begin_frame();
  } else {
    to_ += bytes;
    left_ -= bytes;
  }
  if (left_ > 0) return;
  header_bytes_ = 0;
  end_frame(handler);
}

void Inbox::begin_frame() {
  if (header_.magic != FrameHeader::kMagic) throw BadFrame("sent what is no frame");
  if (header_.length > longest(header_.kind)) throw BadFrame("sent a frame that is too long");
  left_ = header_.length;
  if (header_.kind == FrameKind::whole) begin_whole();
  if (header_.kind == FrameKind::part) begin_part();
  if (of_ != nullptr) return;
  kept_.resize(left_);
  to_ = kept_.data();
}

void Inbox::begin_whole() {
  const auto found = expected_.find(header_.key);
  if (found == expected_.end()) {
    if (early_.contains(header_.key)) throw BadFrame("sent a message twice");
    if (early_bytes_ + header_.length > kMostEarly) throw BadFrame("sent more than this rank asked for");
    return;
  }
  Message& message = *found->second;
  if (message.mark != header_.mark || message.bytes != header_.length) return;  // which its end tells
  of_ = &message;
  to_ = message.data;
}

void Inbox::begin_part() {
  const auto found = expected_.find(header_.key);
  if (found == expected_.end()) {
    if (ended(header_.key)) return;
    throw BadFrame("sent a part of what this rank did not ask for");
  }
  Message& message = *found->second;
  if (message.mark != header_.mark) return message.fail(kDifferent);
  if (header_.at != message.done || header_.length == 0 || message.bytes - message.done < header_.length)
    throw BadFrame("sent parts of a message in disorder");
  of_ = &message;
  to_ = message.data + message.done;
}

void Inbox::end_frame(FrameHandler& handler) {
  if (Message* const message = std::exchange(of_, nullptr)) {
    if (message->move(header_.length)) expected_.erase(header_.key);
    return;
  }
  switch (header_.kind) {
    case FrameKind::whole: return end_whole();
    case FrameKind::part: return;
    case FrameKind::ready: return handler.ready(header_);
    case FrameKind::failed: return handler.failed(header_.key, {kept_.begin(), kept_.end()});
    case FrameKind::waits: return handler.waits(header_);
    case FrameKind::left: return handler.left();
  }
}

// It may be expected since it began to come.
void Inbox::end_whole() {
  Early whole{header_, std::exchange(kept_, {})};
  const auto found = expected_.find(header_.key);
  if (found != expected_.end()) {
    if (take(*found->second, whole)) expected_.erase(header_.key);
  } else if (!ended(header_.key)) {
    early_bytes_ += std::ssize(whole.bytes);
    early_.emplace(header_.key, std::move(whole));
  }
}

}  // namespace zero

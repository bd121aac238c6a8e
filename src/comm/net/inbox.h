// What comes from one rank, on one stream.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/net/message.h"
#include "comm/net/sockets.h"

namespace zero {

// What came is no frame, or not one that may come now: the stream cannot be read any more.
class BadFrame : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Who hears of frames that are no messages.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  virtual void ready(const FrameHeader& header) = 0;
  virtual void failed(const MessageKey& call, const std::string& why) = 0;
  virtual void waits(const FrameHeader& header) = 0;
  virtual void left() = 0;
};

// Parts are received where they belong; whole messages that come before they are expected are kept, kMostEarly bytes of
// them at most. Not thread-safe.
class Inbox {
 public:
  static constexpr std::int64_t kMostEarly = std::int64_t{64} << 20;

  void expect(Message& message);
  // The message is not received any more. Where it was still to come, as by end(): nothing of its call, or of a later
  // one of its channel's, and what still comes of them is nobody's.
  void drop(const Message& message);
  void end(const MessageKey& call);

  // What there is, until the socket has no more or some frames have come. False at the stream's end. Throws BadFrame,
  // and std::system_error.
  bool read(Sockets& sockets, int socket, FrameHandler& handler);

 private:
  struct Early {
    FrameHeader header;
    std::vector<char> bytes;
  };

  void advance(std::size_t bytes, FrameHandler& handler);
  void begin_frame();
  void begin_whole();
  void begin_part();
  bool ended(const MessageKey& key) const;
  void end_frame(FrameHandler& handler);
  void end_whole();
  static bool take(Message& message, const Early& whole);

  std::map<MessageKey, Message*> expected_;
  std::map<MessageKey, Early> early_;
  std::int64_t early_bytes_ = 0;
  std::map<std::uint64_t, std::uint32_t> ended_;  // channels, from which call on
  // The frame that is being read: so much of its header; where the next of what is behind that goes, and whose it is.
  FrameHeader header_;
  std::size_t header_bytes_ = 0;
  char* to_ = nullptr;
  std::size_t left_ = 0;
  Message* of_ = nullptr;
  std::vector<char> kept_;  // what is behind the header, where that is no message's
};

}  // namespace zero

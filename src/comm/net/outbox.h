// What one rank is to send to another, on one stream.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "comm/net/message.h"
#include "comm/net/sockets.h"

namespace zero {

// Words go before messages, messages of at most kLongestWhole bytes before longer ones, of these such as are to go
// first before others, and of each the one that was begun first: what is short, or goes first, waits for one part of
// others at most. A longer one goes when its receiver is ready for it. Not thread-safe.
class Outbox {
 public:
  void add(Message& message);
  // Of a receiver; ahead of the message it is for, perhaps. What is wrong with it: empty where nothing is.
  std::string ready(const FrameHeader& header);
  void say(FrameHeader header, const std::string& words = {});
  // The message is not sent any more. What of it is on its way is copied first.
  void drop(const Message& message);
  void forget(std::uint64_t channel);  // what receivers there are ready for

  bool idle() const { return frame_left() == 0 && words_.empty() && sending_.empty(); }
  // Gives the socket what it takes: until nothing is left (true), or it takes no more. Throws std::system_error.
  bool write(Sockets& sockets, int socket);

 private:
  struct Words {
    FrameHeader header;
    std::string text;
  };

  void line_up(Message& message);
  bool next_frame();
  void begin(const FrameHeader& header, const char* data, Message* message);
  std::size_t frame_left() const { return frame_bytes_ - written_; }
  void advance(std::size_t bytes);
  void end_frame();

  std::deque<Words> words_;
  std::list<Message*> sending_;
  std::map<MessageKey, Message*> waiting_;   // for their receivers
  std::map<MessageKey, FrameHeader> early_;  // receivers, ready for what there is not yet
  // The frame that is being written: its header, what is behind that, and whose part it is.
  FrameHeader header_;
  const char* data_ = nullptr;
  std::string kept_;  // what is behind the header, where that is no message's
  std::size_t frame_bytes_ = 0, written_ = 0;
  Message* of_ = nullptr;
};

}  // namespace zero

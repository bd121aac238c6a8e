// How two ranks that a stream has joined find out that they belong together: each says who it is and draws a number,
// and proves by a seal over both that it knows the run's secret, which is never sent.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/system_files.h"
#include "comm/net/siphash.h"
#include "comm/net/sockets.h"

namespace zero {

// Of one run, on one of its ranks.
struct NetworkIdentity {
  int rank = 0;
  int size = 1;
  Secret secret = {};
};

// The other end is not who it should be; the text says what it is instead.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// It has closed the connection, and said nothing.
class Closed : public Refused {
 public:
  using Refused::Refused;
};

// What each sends first, as it lies in memory.
struct Hello {
  std::array<char, 8> magic = {'l', 'i', 'b', 'z', 'e', 'r', 'o', '\n'};
  std::uint16_t byte_order = 0x0102;
  std::uint16_t version = 2;  // of this and of frames
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::array<std::uint8_t, 16> number = {};
};
static_assert(sizeof(Hello) == 36);

class Handshake {
 public:
  // `stream` does not block. Of the two ranks the one of higher number has connected, as this one has, or not.
  Handshake(Descriptor stream, const NetworkIdentity& own, bool connected);

  // Goes on as far as it can without waiting; true when it is over. Throws Refused.
  bool advance(Sockets& sockets);
  // Whether bytes are still to be sent; else it waits for some.
  bool sends() const { return sent_ < out_bytes(); }
  int socket() const { return stream_.get(); }
  // Who has said so, without having proved it until it is over.
  std::optional<int> peer() const { return heard_ ? std::optional<int>(theirs_.rank) : std::nullopt; }
  Descriptor take() { return std::move(stream_); }

 private:
  // Of those bytes of what is said that are known: the hello, and then the seal.
  std::size_t out_bytes() const { return sizeof(Hello) + (heard_ ? sizeof(Seal) : 0); }
  bool write(Sockets& sockets);
  bool read(Sockets& sockets);
  void hear();
  Seal seal_of(bool connected) const;

  Descriptor stream_;
  NetworkIdentity own_;
  bool connected_;
  bool heard_ = false;
  Hello mine_, theirs_;
  Seal my_seal_ = {}, their_seal_ = {};
  std::size_t sent_ = 0, got_ = 0;
};

}  // namespace zero

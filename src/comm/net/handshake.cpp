#include "comm/net/handshake.h"

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/system_random.h"

namespace zero {
namespace {

// At most so many bytes as the rest of `bytes`; false where there is more to come.
bool go_on(std::ptrdiff_t count, std::size_t& done, std::size_t bytes) {
  if (count == 0 || (count < 0 && (errno == ECONNRESET || errno == EPIPE))) throw Closed("closed the connection");
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (count < 0) throw Refused(std::strerror(errno));
  done += static_cast<std::size_t>(count);
  return done == bytes;
}

}  // namespace

Handshake::Handshake(Descriptor stream, const NetworkIdentity& own, bool connected)
    : stream_(std::move(stream)), own_(own), connected_(connected) {
  mine_.rank = own.rank;
  mine_.size = own.size;
  mine_.number = random_bytes();
}

bool Handshake::advance(Sockets& sockets) {
  for (;;) {
    const std::size_t before = sent_ + got_;
    while (sends() && write(sockets)) {
    }
    if (got_ < sizeof(Hello) + sizeof(Seal) && read(sockets) && got_ == sizeof(Hello)) hear();
    if (got_ == sizeof(Hello) + sizeof(Seal) && !sends()) break;
    if (sent_ + got_ == before) return false;
  }
  if (their_seal_ != seal_of(!connected_)) throw Refused("does not know the secret of this run");
  return true;
}

bool Handshake::write(Sockets& sockets) {
  const bool hello = sent_ < sizeof(Hello);
  const char* const from = hello ? reinterpret_cast<const char*>(&mine_) + sent_
                                 : reinterpret_cast<const char*>(&my_seal_) + (sent_ - sizeof(Hello));
  const std::size_t left = (hello ? sizeof(Hello) : sizeof(Hello) + sizeof(Seal)) - sent_;
  const iovec part{const_cast<char*>(from), left};
  const auto count = sockets.send(stream_.get(), std::span(&part, 1));
  std::size_t done = 0;
  const bool whole = go_on(count, done, left);
  sent_ += done;
  return whole;
}

// No byte more than belongs to the handshake. True at the end of the hello, and of the seal.
bool Handshake::read(Sockets& sockets) {
  const bool hello = got_ < sizeof(Hello);
  char* const to =
      hello ? reinterpret_cast<char*>(&theirs_) + got_ : reinterpret_cast<char*>(&their_seal_) + (got_ - sizeof(Hello));
  const std::size_t left = (hello ? sizeof(Hello) : sizeof(Hello) + sizeof(Seal)) - got_;
  const iovec part{to, left};
  const auto count = sockets.receive(stream_.get(), std::span(&part, 1));
  std::size_t done = 0;
  const bool whole = go_on(count, done, left);
  got_ += done;
  return whole;
}

void Handshake::hear() {
  if (theirs_.magic != mine_.magic) throw Refused("is no rank of libzero's");
  if (theirs_.byte_order != mine_.byte_order)
    throw Refused("is a rank on a host whose numbers have another byte order, which cannot be joined");
  if (theirs_.version != mine_.version)
    throw Refused("is a rank of another version of libzero, whose messages have version " +
                  std::to_string(theirs_.version) + " where this one's have " + std::to_string(mine_.version));
  if (theirs_.size != mine_.size)
    throw Refused("is one of " + std::to_string(theirs_.size) + " ranks, where this one is of " +
                  std::to_string(mine_.size));
  if (connected_ ? theirs_.rank < 0 || theirs_.rank >= mine_.rank
                 : theirs_.rank <= mine_.rank || theirs_.rank >= mine_.size)
    throw Refused("says that it is rank " + std::to_string(theirs_.rank) + ", which does not connect here");
  heard_ = true;
  my_seal_ = seal_of(connected_);
}

Seal Handshake::seal_of(bool connected) const {
  std::vector<std::uint8_t> bytes{static_cast<std::uint8_t>(connected ? 'c' : 'a')};
  for (const Hello* const each : {connected_ ? &mine_ : &theirs_, connected_ ? &theirs_ : &mine_}) {
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(each);
    bytes.insert(bytes.end(), begin, begin + sizeof *each);
  }
  return sealed(own_.secret, bytes);
}

}  // namespace zero

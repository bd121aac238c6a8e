// The door to sockets: what connections between hosts ask of the system. Tests put theirs in its place, which breaks.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <span>

namespace zero {

class Sockets {
 public:
  virtual ~Sockets() = default;
  // As many bytes as the socket takes at once, or has: none at the stream's end. -1: errno says why not; EAGAIN where
  // it takes or has none. Never blocks, and a broken connection is no signal.
  virtual std::ptrdiff_t send(int socket, std::span<const iovec> parts);
  virtual std::ptrdiff_t receive(int socket, std::span<const iovec> parts);

  static Sockets& of_system();
};

// A stream between two ranks, as messages want it: nothing waits for more to send, what the peer's host does not
// acknowledge within `limit` is an error, and little lies in the system that could not be overtaken.
void prepare_stream(int socket, std::chrono::milliseconds limit);

}  // namespace zero

// Where this host can be reached, sockets that listen at one of its addresses only, and the file in a folder that all
// users write to by which rank 0 tells the other ranks of its host where it listens.
#pragma once

#include <poll.h>

#include <chrono>
#include <span>
#include <string>

#include "comm/descriptor_passing.h"

namespace zero {

inline constexpr const char* kLoopback = "127.0.0.1";

// Whether an address in digits reaches nobody but this host.
bool is_loopback(const std::string& address);

// The address of this host by which it reaches `host`, in digits; needs no answer from there. Where `host` is this
// one, that is its own. Throws CommError when the name is unknown or there is no route.
std::string address_towards(const std::string& host, int port);

// Returns when somebody takes connections at `host` and `port`, which is tried until `deadline`. Throws CommError
// saying why nobody does.
void await_listener(const std::string& host, int port, std::chrono::steady_clock::time_point deadline);

// A stream to who takes connections there, which does not block. Throws CommError saying why nobody does.
Descriptor connect_to(const std::string& host, int port, std::chrono::steady_clock::time_point deadline);

// The address of who is at the other end of a stream, in digits.
std::string address_of_peer(int socket);

// Waits for one of them until `end`, as poll(2) does.
void poll_until(std::span<pollfd> polled, std::chrono::steady_clock::time_point end);

// The address of one of this host's interfaces, in digits. Throws CommError when it has none.
std::string address_of_interface(const std::string& name);

// A TCP socket that is bound but does not listen yet.
struct Listener {
  Descriptor socket;
  int port;
};

// At `address`, in digits, and `port`; 0: any that is free. Throws CommError.
Listener bind_listener(const std::string& address, int port);

// Writes the port and this process into `file`, all at once. Follows no link and writes to nothing that was there.
// Throws CommError.
void publish_port(const std::string& file, int port);

// The port in a file of this user's that a living process wrote; 0: there is none yet.
int read_port(const std::string& file);

}  // namespace zero

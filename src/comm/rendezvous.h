// The store in which the ranks of a launched job meet.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/launcher_env.h"

namespace zero {

// Ranks find each other at the launcher's address or, without one, when they share a host, by a file
// in the temporary folder named after user and job.
class Rendezvous {
 public:
  // Rank 0 listens unless the launcher's agent does. Throws ConfigError when there is no address and
  // the ranks do not share a host, CommError naming host and port when the ranks do not meet.
  Rendezvous(const LauncherEnv& env, std::chrono::milliseconds timeout);
  ~Rendezvous();  // removes the file
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  const std::string& host() const { return host_; }

 private:
  void connect(const LauncherEnv& env, std::chrono::milliseconds timeout);
  void publish();
  void look_up(std::chrono::milliseconds timeout);
  void await_ranks(const LauncherEnv& env, std::chrono::milliseconds timeout) const;

  std::string host_;
  int port_;
  std::string file_;
  bool published_ = false;
  c10::intrusive_ptr<c10d::Store> store_;
};

// The address of this host by which it reaches `host`; needs no answer from there. Throws CommError
// when the name does not resolve or there is no route.
std::string address_towards(const std::string& host, int port);

}  // namespace zero

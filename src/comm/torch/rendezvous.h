// The store in which the ranks of a launched job meet.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "comm/launcher_env.h"
#include "zero/world.h"

namespace zero {

// Ranks find each other at the launcher's address or, without one, when they share a host, by a file
// in the temporary folder named after user and job. Rank 0 listens unless the launcher's agent does: on
// the loopback interface where all ranks share a host, else on the one towards the others, for as long as its process
// lives, so that the ranks can meet again. Each meeting of a process has names of its own in the store: the ranks must
// meet equally often.
class Rendezvous {
 public:
  // Throws ConfigError when there is no address that all ranks reach, CommError naming host and port when the ranks do
  // not meet within the time limit.
  Rendezvous(const LauncherEnv& env, const InitOptions& options);
  ~Rendezvous();  // removes the file
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  const std::string& host() const { return host_; }

 private:
  struct Place;
  static std::pair<std::unique_lock<std::mutex>, Place&> kept(const std::string& name);

  void listen(const LauncherEnv& env);
  void look_up(const LauncherEnv& env);
  void connect(const LauncherEnv& env);
  void await_ranks(const LauncherEnv& env) const;
  std::string address() const { return host_ + ":" + std::to_string(port_); }
  std::string named(const LauncherEnv& env) const;
  std::string limit() const { return std::to_string(timeout_.count()) + " ms"; }

  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point deadline_;
  bool debug_;
  std::string host_;
  int port_;
  std::string file_;
  std::string place_;  // file or address
  bool published_ = false;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace zero

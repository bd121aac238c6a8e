// How ranks find each other over the network: each listens until those of higher numbers have connected, and connects
// to those of lower ones.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/listener.h"
#include "comm/net/handshake.h"
#include "comm/net/links.h"

namespace zero {

class NetworkMeeting {
 public:
  // Listens at this address of the host's, in digits, from now on. Throws CommError.
  NetworkMeeting(const std::string& address, const NetworkIdentity& own, std::chrono::milliseconds limit,
                 Sockets& sockets = Sockets::of_system());

  // What the other ranks are to be told, and tell this one.
  std::string place() const;

  // Streams to all of them, which have these places, by rank. Whoever else connects is turned away, the oldest of them
  // where they are a hundred more than ranks, and nobody is listened to afterwards. Throws CommError, naming who is
  // missing and why where that is known.
  std::vector<LinkedRank> join(const std::vector<std::string>& places);

 private:
  using Clock = std::chrono::steady_clock;

  void connect(int rank);
  void accept_one();
  void make_room();
  void advance(Handshake& handshake, int rank);
  void turn_over();
  bool missing(int rank) const;
  [[noreturn]] void fail() const;
  CommError failure(const std::string& what) const;

  std::string address_;
  NetworkIdentity own_;
  std::chrono::milliseconds limit_;
  Sockets& sockets_;
  Listener listener_;
  Clock::time_point deadline_ = {};
  std::vector<LinkedRank> ranks_;
  struct Coming {
    Handshake handshake;
    int rank = -1;  // that is connected to; -1: who comes here
  };
  std::vector<std::string> places_;  // by rank
  std::vector<Coming> coming_;
  std::vector<int> again_;   // ranks to be connected to once more
  std::string turned_away_;  // the latest, and why
};

}  // namespace zero

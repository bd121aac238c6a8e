#include "comm/net/network_meeting.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "zero/error.h"

namespace zero {
namespace {

constexpr int kBacklog = 1024;
constexpr std::int64_t kMostStrangers = 100;            // that have connected, beside as many as there are ranks
constexpr auto kPause = std::chrono::milliseconds(20);  // before a rank is connected to again

std::string name_of(int rank, const std::string& address) {
  return "rank " + std::to_string(rank) + " at " + address;
}

}  // namespace

NetworkMeeting::NetworkMeeting(const std::string& address, const NetworkIdentity& own, std::chrono::milliseconds limit,
                               Sockets& sockets)
    : address_(address), own_(own), limit_(limit), sockets_(sockets), listener_{Descriptor(), 0} {
  try {
    listener_ = bind_listener(address, 0);
  } catch (const CommError& error) {
    throw failure("cannot listen at " + address + ": " + error.what());
  }
  fcntl(listener_.socket.get(), F_SETFL, O_NONBLOCK);
  if (listen(listener_.socket.get(), kBacklog) != 0) throw failure("cannot listen at " + address);
}

std::string NetworkMeeting::place() const {
  return std::to_string(listener_.port) + ' ' + address_;
}

CommError NetworkMeeting::failure(const std::string& what) const {
  return CommError("rank " + std::to_string(own_.rank) + ": joining " + std::to_string(own_.size) +
                       " ranks over the network: " + what,
                   "see the other ranks' errors, check that the hosts reach each other at these addresses, or raise "
                   "ZERO_TIMEOUT");
}

std::vector<LinkedRank> NetworkMeeting::join(const std::vector<std::string>& places) {
  deadline_ = Clock::now() + limit_;
  places_ = places;
  for (const std::string& place : places)
    ranks_.push_back({name_of(static_cast<int>(ranks_.size()), place.substr(place.find(' ') + 1)), Descriptor()});
  for (int rank = 0; rank < own_.rank; ++rank) connect(rank);
  for (int rank = 0; rank < own_.size; ++rank)
    while (missing(rank)) turn_over();
  listener_.socket = Descriptor();
  return std::move(ranks_);
}

bool NetworkMeeting::missing(int rank) const {
  return rank != own_.rank && !ranks_[static_cast<std::size_t>(rank)].stream;
}

// Says at once who it is.
void NetworkMeeting::connect(int rank) {
  const std::string& place = places_[static_cast<std::size_t>(rank)];
  const std::size_t gap = place.find(' ');
  try {
    Descriptor stream = connect_to(place.substr(gap + 1), std::stoi(place.substr(0, gap)), deadline_);
    prepare_stream(stream.get(), limit_);
    coming_.push_back({Handshake(std::move(stream), own_, /*connected=*/true), rank});
  } catch (const CommError& error) {
    throw failure(ranks_[static_cast<std::size_t>(rank)].name + ": " + error.what());
  }
  advance(coming_.back().handshake, rank);
}

// Of those that have come and are not joined yet the oldest goes, first one that has not said who it is.
void NetworkMeeting::make_room() {
  const auto came = [](const Coming& each) { return each.rank < 0; };
  auto oldest = std::ranges::find_if(coming_, [&](const Coming& each) { return came(each) && !each.handshake.peer(); });
  if (oldest == coming_.end()) oldest = std::ranges::find_if(coming_, came);
  if (oldest != coming_.end()) coming_.erase(oldest);
}

void NetworkMeeting::accept_one() {
  Descriptor stream(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!stream) {
    if (errno == EMFILE || errno == ENFILE) make_room();
    return;
  }
  if (std::ssize(coming_) >= kMostStrangers + own_.size) make_room();
  prepare_stream(stream.get(), limit_);
  coming_.push_back({Handshake(std::move(stream), own_, /*connected=*/false)});
  advance(coming_.back().handshake, -1);
}

// Of a handshake that is over, or has come to nothing, the stream is taken. A rank that had too many guests is visited
// once more.
void NetworkMeeting::advance(Handshake& handshake, int rank) {
  try {
    if (!handshake.advance(sockets_)) return;
    const int peer = *handshake.peer();
    if (!missing(peer)) throw Refused("says that it is rank " + std::to_string(peer) + ", which is there already");
    ranks_[static_cast<std::size_t>(peer)].stream = handshake.take();
  } catch (const Closed& closed) {
    turned_away_ = address_of_peer(handshake.socket()) + ' ' + closed.what();
    handshake.take();
    if (rank >= 0) again_.push_back(rank);
  } catch (const Refused& refusal) {
    const std::string who = address_of_peer(handshake.socket());
    if (rank >= 0) throw failure("who listens at " + who + ' ' + refusal.what());
    turned_away_ = "who connected from " + who + ' ' + refusal.what();
    handshake.take();
  }
}

// One wait for whoever comes or says something.
void NetworkMeeting::turn_over() {
  if (Clock::now() >= deadline_) fail();
  if (!again_.empty()) std::this_thread::sleep_for(kPause);
  for (const int rank : std::exchange(again_, {})) connect(rank);
  std::erase_if(coming_, [](const Coming& each) { return each.handshake.socket() < 0; });
  if (!again_.empty()) return;
  std::vector<pollfd> polled{{listener_.socket.get(), POLLIN, 0}};
  for (const Coming& each : coming_)
    polled.push_back({each.handshake.socket(), static_cast<short>(POLLIN | (each.handshake.sends() ? POLLOUT : 0)), 0});
  poll_until(polled, deadline_);
  for (std::size_t i = 1; i < polled.size(); ++i)
    if (polled[i].revents != 0) advance(coming_[i - 1].handshake, coming_[i - 1].rank);
  std::erase_if(coming_, [](const Coming& each) { return each.handshake.socket() < 0; });
  if (polled[0].revents != 0) accept_one();
}

void NetworkMeeting::fail() const {
  std::string absent;
  for (int rank = 0; rank < own_.size; ++rank)
    if (missing(rank)) absent += (absent.empty() ? "" : ", ") + ranks_[static_cast<std::size_t>(rank)].name;
  throw failure(absent + " did not come within " + std::to_string(limit_.count()) + " ms" +
                (turned_away_.empty() ? "" : "; " + turned_away_));
}

}  // namespace zero

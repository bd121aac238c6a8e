#include "comm/net/network_meeting.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "zero/error.h"

namespace zero {
namespace {

constexpr int kBacklog = 1024;
constexpr std::size_t kMostStrangers = 128;  // that have connected and not said yet who they are

std::string address_of_peer(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* const peer = reinterpret_cast<sockaddr*>(&address);
  char host[NI_MAXHOST];
  if (getpeername(socket, peer, &length) != 0 ||
      getnameinfo(peer, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
    return "an address unknown";
  return host;
}

std::string name_of(int rank, const std::string& address) {
  return "rank " + std::to_string(rank) + " at " + address;
}

}  // namespace

NetworkMeeting::NetworkMeeting(const std::string& address, const NetworkIdentity& own, std::chrono::milliseconds limit,
                               Sockets& sockets)
    : address_(address), own_(own), limit_(limit), sockets_(sockets), listener_(bind_listener(address, 0)) {
  prepare_stream(listener_.socket.get(), limit);
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
  for (int rank = 0; rank < own_.size; ++rank) {
    const std::string& place = places[static_cast<std::size_t>(rank)];
    ranks_.push_back({name_of(rank, place.substr(place.find(' ') + 1)), Descriptor()});
    if (rank < own_.rank) connect(place, rank);
  }
  for (int rank = 0; rank < own_.size; ++rank)
    while (missing(rank)) turn_over();
  listener_.socket = Descriptor();
  return std::move(ranks_);
}

bool NetworkMeeting::missing(int rank) const {
  return rank != own_.rank && !ranks_[static_cast<std::size_t>(rank)].stream;
}

void NetworkMeeting::connect(const std::string& place, int rank) {
  const std::size_t gap = place.find(' ');
  try {
    Descriptor stream = connect_to(place.substr(gap + 1), std::stoi(place.substr(0, gap)), deadline_);
    prepare_stream(stream.get(), limit_);
    handshakes_.emplace_back(std::move(stream), own_, /*connected=*/true);
  } catch (const CommError& error) {
    throw failure(ranks_[static_cast<std::size_t>(rank)].name + ": " + error.what());
  }
}

void NetworkMeeting::accept_one() {
  Descriptor stream(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!stream) return;
  const auto strange = [this](const Handshake& each) { return !each.connected() && !each.peer(); };
  if (std::ranges::count_if(handshakes_, strange) >= std::ptrdiff_t{kMostStrangers})
    handshakes_.erase(std::ranges::find_if(handshakes_, strange));
  prepare_stream(stream.get(), limit_);
  handshakes_.emplace_back(std::move(stream), own_, /*connected=*/false);
}

// Of a handshake that is over, or has come to nothing, the stream is taken.
void NetworkMeeting::advance(Handshake& handshake) {
  try {
    if (!handshake.advance(sockets_)) return;
    const int rank = *handshake.peer();
    if (!missing(rank)) throw Refused("says that it is rank " + std::to_string(rank) + ", which is there already");
    ranks_[static_cast<std::size_t>(rank)].stream = handshake.take();
  } catch (const Refused& refusal) {
    const std::string who = address_of_peer(handshake.socket());
    if (handshake.connected()) throw failure("who listens at " + who + ' ' + refusal.what());
    turned_away_ = "who connected from " + who + ' ' + refusal.what();
    handshake.take();
  }
}

// One wait for whoever comes or says something.
void NetworkMeeting::turn_over() {
  std::vector<pollfd> polled{{listener_.socket.get(), POLLIN, 0}};
  for (const Handshake& each : handshakes_)
    polled.push_back({each.socket(), static_cast<short>(POLLIN | (each.sends() ? POLLOUT : 0)), 0});
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
  if (left <= 0) fail();
  uninterrupted(
      [&] { return poll(polled.data(), polled.size(), static_cast<int>(std::clamp<std::int64_t>(left, 1, 1 << 30))); });
  for (std::size_t i = 1; i < polled.size(); ++i)
    if (polled[i].revents != 0) advance(handshakes_[i - 1]);
  std::erase_if(handshakes_, [](const Handshake& each) { return each.socket() < 0; });
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

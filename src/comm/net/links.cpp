#include "comm/net/links.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "comm/listener.h"
#include "comm/net/inbox.h"
#include "comm/net/outbox.h"
#include "zero/error.h"

namespace zero {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLeave{1};  // that peers have to take this rank's last words

class Links::Link final : public FrameHandler {
 public:
  Link(Links& links, LinkedRank linked, int rank)
      : name(std::move(linked.name)), stream(std::move(linked.stream)), number(rank), links_(links) {}

  void ready(const FrameHeader& header) override {
    const std::string fault = out.ready(header);
    if (!fault.empty()) throw BadFrame(fault);
  }
  void failed(const MessageKey& call, const std::string& why) override {
    links_.fail_from(call, links_.name_of(number) + ' ' + why, number);
  }
  void waits(const FrameHeader& header) override {
    if (header.at < -1 || header.at >= std::ssize(links_.links_)) throw BadFrame("waits for a rank that there is not");
    waits_for = static_cast<int>(header.at);
  }
  void left() override { has_left = true; }

  bool open() const { return failure.empty(); }
  bool writes() const { return muted.empty() && !out.idle(); }

  std::string name;
  Descriptor stream;
  int number;
  Inbox in;
  Outbox out;
  int waits_for = -1;  // as it said, last
  bool has_left = false;
  std::string muted = {};    // why nothing is sent any more: what has come may say more
  std::string failure = {};  // why nothing goes over it any more

 private:
  Links& links_;
};

Links::Links(std::vector<LinkedRank> ranks, Sockets& sockets) : sockets_(sockets), wake_(eventfd(0, EFD_CLOEXEC)) {
  if (!wake_) throw CommError("the system has no descriptor left to join ranks by");
  for (LinkedRank& rank : ranks) {
    const int number = static_cast<int>(links_.size());
    links_.push_back(rank.stream ? std::make_unique<Link>(*this, std::move(rank), number) : nullptr);
  }
  thread_ = std::thread([this] { run(); });
}

Links::~Links() {
  if (!origin_.here()) {
    thread_.detach();  // which is not in this process
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    leave_by_ = std::chrono::steady_clock::now() + kLeave;
    for (const auto& link : links_)
      if (link && link->open()) link->out.say({.kind = FrameKind::left});
  }
  wake();
  thread_.join();
}

void Links::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(uninterrupted([&] { return ::write(wake_.get(), &one, sizeof one); }));
}

void Links::begin(Message& message, int rank) {
  const std::lock_guard lock(mutex_);
  Link& link = *links_[static_cast<std::size_t>(rank)];
  message.rank = rank;
  message.peer = &link.name;
  ++message.batch->left_in(message.direction);
  under_way_.insert(&message);
  if (message.direction == Direction::in) link.in.expect(message);  // what a peer has said before it left is there
  if (message.done == message.bytes || refused(message, link)) return;
  if (message.direction == Direction::out) {
    link.out.add(message);
  } else if (message.bytes > kLongestWhole) {
    link.out.say({.kind = FrameKind::ready, .key = message.key, .at = message.bytes, .mark = message.mark});
  }
  flush(link);
}

// Whether the message cannot be any more, of which its batch is told.
bool Links::refused(const Message& message, const Link& link) const {
  const auto failed = failed_.find(message.key.channel);
  if (failed != failed_.end() && failed->second.call <= message.key.call) {
    message.batch->fail(failed->second.why, failed->second.by);
  } else if (!link.open()) {
    message.batch->fail(name_of(link.number) + ' ' + link.failure, link.number);
  } else {
    return false;
  }
  return true;
}

void Links::drop(Message& message, int rank) {
  const std::lock_guard lock(mutex_);
  under_way_.erase(&message);
  if (message.done == message.bytes) return;
  Link& link = *links_[static_cast<std::size_t>(rank)];
  link.in.drop(message);
  link.out.drop(message);
}

void Links::wait(MessageBatch& batch, Direction direction, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return batch.left_in(direction) == 0 || !batch.failure.empty(); };
  const auto begun = Clock::now();
  auto quiet = Clock::duration::zero();
  while (!batch.changed.wait_for(lock, std::min<Clock::duration>(limit / kLong, limit - quiet), over)) {
    quiet = Clock::now() - std::max(begun, batch.moved);
    if (quiet >= limit / kLong) look_around(batch, direction, limit, quiet);
  }
  if (batch.failure.empty()) return end_wait(&batch);
  if (batch.by >= 0) tell(batch.by, nullptr);
  throw CommError(batch.failure);
}

// Nothing has moved for a while: whose fault that is, the others are to know, and in the end the batch.
void Links::look_around(MessageBatch& batch, Direction direction, std::chrono::milliseconds limit,
                        Clock::duration quiet) {
  const std::set<int> absent = late(batch, direction);
  tell(*absent.begin(), &batch);
  if (quiet < limit) return;
  std::string names;
  for (const int rank : absent)
    if (const int awaited_there = awaited(rank); awaited_there == rank || !absent.contains(awaited_there))
      names += (names.empty() ? "" : ", ") + name_of(rank);
  batch.fail(names + " did not answer within " + std::to_string(limit.count()) + " ms", *absent.begin());
}

std::set<int> Links::late(const MessageBatch& batch, Direction direction) const {
  std::set<int> ranks;
  for (const Message* const each : under_way_)
    if (each->batch == &batch && each->direction == direction && each->done < each->bytes) ranks.insert(each->rank);
  return ranks;
}

void Links::tell(int rank, const void* wait) {
  told_of_ = wait;
  if (std::exchange(told_, rank) == rank) return;
  for (const auto& link : links_)
    if (link && link->open()) {
      link->out.say({.kind = FrameKind::waits, .at = rank});
      flush(*link);
    }
}

void Links::end_wait(const void* wait) {
  if (told_of_ == wait) tell(-1, nullptr);
}

void Links::waits_for(int rank, const void* wait) {
  const std::lock_guard lock(mutex_);
  tell(rank, wait);
}

void Links::goes_on(const void* wait) {
  const std::lock_guard lock(mutex_);
  end_wait(wait);
}

// What it said before it was found absent is there, but perhaps not read yet.
std::string Links::of(int rank) {
  const std::lock_guard lock(mutex_);
  if (Link* const link = links_[static_cast<std::size_t>(rank)].get()) serve(*link, /*readable=*/true);
  return whom(rank);
}

// The rank that it waits for, or that waits for nobody behind that one; itself where that is nobody, or this rank.
int Links::awaited(int rank) const {
  int last = rank;
  for (std::size_t steps = 0; steps < links_.size(); ++steps) {
    const int next = links_[static_cast<std::size_t>(last)]->waits_for;
    if (next < 0 || !links_[static_cast<std::size_t>(next)]) return last;
    last = next;
  }
  return rank;  // they wait for each other
}

std::string Links::whom(int rank) const {
  if (!links_[static_cast<std::size_t>(rank)]) return {};
  const int last = awaited(rank);
  return last == rank ? "" : ", which waits for " + links_[static_cast<std::size_t>(last)]->name + ',';
}

std::string Links::name_of(int rank) const {
  return links_[static_cast<std::size_t>(rank)]->name + whom(rank);
}

void Links::fail(const MessageKey& call, const std::vector<int>& members, const std::string& why) {
  const std::lock_guard lock(mutex_);
  for (const int rank : members)
    if (Link* const link = links_[static_cast<std::size_t>(rank)].get(); link != nullptr && link->open()) {
      link->out.say({.kind = FrameKind::failed, .key = call}, why);
      flush(*link);
    }
  fail_from(call, why, -1);
}

void Links::end(std::uint64_t channel) {
  const std::lock_guard lock(mutex_);
  for (const auto& link : links_)
    if (link) {
      link->in.end({.channel = channel});
      link->out.forget(channel);
    }
}

// What the peers brought to calls before it is there, or on its way.
void Links::fail_from(const MessageKey& call, const std::string& why, int by) {
  const auto [known, first] = failed_.emplace(call.channel, Failed{call.call, why, by});
  if (!first && known->second.call <= call.call) return;
  known->second = {call.call, why, by};
  for (Message* const message : under_way_)
    if (message->key.channel == call.channel && message->key.call >= call.call) message->batch->fail(why, by);
  for (const auto& link : links_)
    if (link) link->in.end(call);
}

void Links::fail_link(Link& link, const std::string& why) {
  link.failure = why;
  shutdown(link.stream.get(), SHUT_RDWR);
  for (const Message* const message : under_way_)
    if (message->rank == link.number && message->done < message->bytes)
      message->batch->fail(name_of(link.number) + ' ' + why, link.number);
}

// What the stream takes at once; the thread sees to the rest.
void Links::flush(Link& link) {
  if (!link.open() || !link.muted.empty()) return;
  try {
    if (link.out.write(sockets_, link.stream.get())) return;
  } catch (const std::system_error& error) {
    link.muted = error.code().message();
    shutdown(link.stream.get(), SHUT_WR);
  }
  wake();
}

void Links::serve(Link& link, bool readable) {
  flush(link);
  if (!readable || !link.open()) return;
  try {
    const bool goes_on = link.in.read(sockets_, link.stream.get(), link);
    if (link.has_left) {
      fail_link(link, "left the group");
    } else if (!goes_on) {
      fail_link(link, link.muted.empty() ? "died" : "died, or cannot be reached: " + link.muted);
    }
  } catch (const std::system_error& error) {
    fail_link(link, "died, or cannot be reached: " + error.code().message());
  } catch (const std::exception& fault) {
    fail_link(link, fault.what());
  }
}

// False when this process leaves, and has said so.
bool Links::poll_all() {
  std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
  std::vector<Link*> of;
  auto until = std::chrono::steady_clock::time_point::max();
  {
    const std::lock_guard lock(mutex_);
    bool busy = false;
    for (const auto& link : links_) {
      if (!link || !link->open()) continue;
      busy |= link->writes();
      polled.push_back({link->stream.get(), static_cast<short>(POLLIN | (link->writes() ? POLLOUT : 0)), 0});
      of.push_back(link.get());
    }
    if (stopping_) {
      until = leave_by_;
      if (!busy || until <= std::chrono::steady_clock::now()) return false;
    }
  }
  poll_until(polled, until);
  if (polled[0].revents != 0) {
    std::uint64_t count = 0;
    static_cast<void>(::read(wake_.get(), &count, sizeof count));
  }
  for (std::size_t i = 0; i < of.size(); ++i) {
    const std::lock_guard lock(mutex_);
    if (polled[i + 1].revents != 0) serve(*of[i], (polled[i + 1].revents & ~POLLOUT) != 0);
  }
  return true;
}

void Links::run() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (poll_all()) {
  }
}

}  // namespace zero

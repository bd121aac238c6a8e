#include "comm/net/links.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <system_error>
#include <utility>

#include "comm/listener.h"
#include "comm/net/inbox.h"
#include "comm/net/outbox.h"
#include "zero/error.h"

namespace zero {

constexpr std::chrono::seconds kLeave{1};  // that peers have to take this rank's last words

class Links::Link final : public FrameHandler {
 public:
  Link(Links& links, LinkedRank rank) : name(std::move(rank.name)), stream(std::move(rank.stream)), links_(links) {}

  void ready(const FrameHeader& header) override {
    const std::string fault = out.ready(header);
    if (!fault.empty()) throw BadFrame(fault);
  }
  void failed(const MessageKey& call, const std::string& why) override { links_.fail_from(call, name + ' ' + why); }
  void left() override { has_left = true; }

  bool open() const { return failure.empty(); }
  bool writes() const { return muted.empty() && !out.idle(); }

  std::string name;
  Descriptor stream;
  Inbox in;
  Outbox out;
  bool has_left = false;
  std::string muted = {};    // why nothing is sent any more: what has come may say more
  std::string failure = {};  // why nothing goes over it any more

 private:
  Links& links_;
};

Links::Links(std::vector<LinkedRank> ranks, Sockets& sockets) : sockets_(sockets), wake_(eventfd(0, EFD_CLOEXEC)) {
  if (!wake_) throw CommError("the system has no descriptor left to join ranks by");
  for (LinkedRank& rank : ranks)
    links_.push_back(rank.stream ? std::make_unique<Link>(*this, std::move(rank)) : nullptr);
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
    message.batch->fail(failed->second.why);
  } else if (!link.open()) {
    message.fail(link.failure);
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
  auto until = std::chrono::steady_clock::now() + limit;
  while (!batch.changed.wait_until(lock, until, over) && batch.moved + limit > until) until = batch.moved + limit;
  if (!over()) {
    std::set<std::string> late;
    for (const Message* const each : under_way_)
      if (each->batch == &batch && each->direction == direction && each->done < each->bytes) late.insert(*each->peer);
    std::string names;
    for (const std::string& name : late) names += (names.empty() ? "" : ", ") + name;
    batch.failure = names + " did not answer within " + std::to_string(limit.count()) + " ms";
  }
  if (!batch.failure.empty()) throw CommError(batch.failure);
}

void Links::fail(const MessageKey& call, const std::vector<int>& members, const std::string& why) {
  const std::lock_guard lock(mutex_);
  for (const int rank : members)
    if (Link* const link = links_[static_cast<std::size_t>(rank)].get(); link != nullptr && link->open()) {
      link->out.say({.kind = FrameKind::failed, .key = call}, why);
      flush(*link);
    }
  fail_from(call, why);
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
void Links::fail_from(const MessageKey& call, const std::string& why) {
  const auto [known, first] = failed_.emplace(call.channel, Failed{call.call, why});
  if (!first && known->second.call <= call.call) return;
  known->second = {call.call, why};
  for (Message* const message : under_way_)
    if (message->key.channel == call.channel && message->key.call >= call.call) message->batch->fail(why);
  for (const auto& link : links_)
    if (link) link->in.end(call);
}

void Links::fail_link(Link& link, const std::string& why) {
  link.failure = why;
  shutdown(link.stream.get(), SHUT_RDWR);
  for (const Message* const message : under_way_)
    if (message->peer == &link.name && message->done < message->bytes) message->fail(why);
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

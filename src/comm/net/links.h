// This process's streams to the other ranks, one each, and the thread that carries messages over them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/lifetimes.h"
#include "base/system_files.h"
#include "comm/net/message.h"
#include "comm/net/sockets.h"
#include "comm/waits.h"

namespace zero {

// One rank, as the others reach it.
struct LinkedRank {
  std::string name;   // "rank 3 at 10.0.0.2:41000"
  Descriptor stream;  // none: this rank itself
};

// Several groups of ranks share the links, each under a channel of its own. Thread-safe, but for a message, which is
// one thread's.
class Links final : public Waits {
 public:
  explicit Links(std::vector<LinkedRank> ranks, Sockets& sockets = Sockets::of_system());
  // Tells the others that this rank leaves. Every message has been waited for or dropped.
  ~Links() override;
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // Begins it, one way or the other. Its memory, and its batch's, stay until it is done or dropped.
  void begin(Message& message, int rank);
  void drop(Message& message, int rank);
  // Returns when all of a batch is done that goes this way. Throws CommError when one of its messages cannot be any
  // more, or when nothing of it moves for `limit`, naming the ranks of those that are waited for, and whom these wait
  // for.
  void wait(MessageBatch& batch, Direction direction, std::chrono::milliseconds limit);

  // Nobody is to wait for this rank in this call of the channel, whose members these are, or in a later one: it does
  // what `why` says. What still comes of them is dropped.
  void fail(const MessageKey& call, const std::vector<int>& members, const std::string& why);
  void end(std::uint64_t channel);

  void waits_for(int rank, const void* wait) override;
  void goes_on(const void* wait) override;
  std::string of(int rank) override;

 private:
  class Link;

  void tell(int rank, const void* wait);
  std::set<int> late(const MessageBatch& batch, Direction direction) const;
  void look_around(MessageBatch& batch, Direction direction, std::chrono::milliseconds limit,
                   std::chrono::steady_clock::duration quiet);
  void end_wait(const void* wait);
  int awaited(int rank) const;
  std::string whom(int rank) const;
  std::string name_of(int rank) const;
  void run();
  bool poll_all();
  void wake();
  void serve(Link& link, bool readable);
  void flush(Link& link);
  void fail_link(Link& link, const std::string& why);
  void fail_from(const MessageKey& call, const std::string& why, int by);
  bool refused(const Message& message, const Link& link) const;

  Sockets& sockets_;
  ProcessOfOrigin origin_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; this one's: null
  std::set<Message*> under_way_;
  struct Failed {
    std::uint32_t call;  // the first
    std::string why;
    int by;
  };
  std::map<std::uint64_t, Failed> failed_;  // by channel
  int told_ = -1;                           // whom this rank waits for, as the others know
  const void* told_of_ = nullptr;           // in which wait
  Descriptor wake_;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point leave_by_ = {};
  std::thread thread_;
};

}  // namespace zero

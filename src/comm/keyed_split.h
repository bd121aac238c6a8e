// Splits that several threads of each rank ask for at once, in orders that differ from rank to rank.
//
// A communicator is driven by one thread at a time, and its collectives have one order. So the threads of a rank that
// ask stand in a queue, and one of them drives the communicator for all: round by round rank 0 tells the key of the
// first in its queue, every rank waits until one of its own threads has asked for that key, and then they split. A rank
// has as many rounds as calls, whatever their order.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "zero/communicator.h"

namespace zero {

struct KeyedSplit {
  static constexpr std::size_t kLongestKey = 120;  // bytes

  // The same on every rank. Calls of equal keys belong together in the order in which they come.
  std::string key;
  // Called on every rank when they ask for different keys: collective, to throw what says more than keys do.
  std::function<void(const Communicator& group)> explain = {};
};

// All ranks of `group`, in their order, as a group of its own. Collective for each key: any number of threads may be in
// it at once, but then in no other call of `group`. Throws CommError on every rank, and leaves `group` as it was, when
// a rank asks for other keys instead: after a hundredth of the time limit, or after all of it where more than one
// thread was seen to ask.
Communicator split_by_key(const Communicator& group, const KeyedSplit& wanted);

// The calls of one communicator on this rank.
class SplitQueue {
 public:
  std::shared_ptr<CommunicatorImpl> split(const Communicator& group, const KeyedSplit& wanted);

 private:
  struct Request {
    const KeyedSplit& wanted;
    std::shared_ptr<CommunicatorImpl> group = nullptr;
    std::exception_ptr error = nullptr;
    bool done = false;
  };
  struct Reply;

  void drive(const Communicator& group, Request& own);
  std::string key_of_rank_0(const Communicator& group);
  std::vector<Reply> settle(const Communicator& group, const std::string& key, Request*& chosen);
  Reply look(const std::string& key, Request*& chosen);
  void finish(Request& request, std::exception_ptr error);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request*> waiting_;
  std::thread::id last_;  // to ask
  bool several_ = false;  // threads have asked
  bool driven_ = false;   // by a thread that is in drive()
};

}  // namespace zero

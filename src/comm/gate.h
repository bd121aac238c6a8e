// Where ranks that share a segment meet: a barrier in shared memory that notices who has died, left or
// keeps the others waiting too long. Waits spin for microseconds where every rank has a core of its own,
// then sleep on a futex.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/backend.h"
#include "comm/descriptor_passing.h"
#include "comm/segment.h"
#include "comm/waits.h"

namespace zero {

// What a rank says when it comes for a call: which, and where its data is.
struct GateMessage {
  static constexpr std::int64_t kInline = 4096 - 64;  // bytes that travel in the message itself

  Fingerprint call;
  std::int64_t offset = -1;  // in the segment; -1: elsewhere
  SplitCall split;
  alignas(16) char data[kInline];
};

class Gate {
 public:
  // The bytes that `ranks` ranks need at the beginning of a segment, zero at first.
  static std::int64_t bytes(int ranks);

  // `numbers`: the world's of the ranks, by which errors call them.
  Gate(std::shared_ptr<Segment> segment, int rank, std::vector<int> numbers, std::chrono::milliseconds timeout,
       std::shared_ptr<Waits> waits = std::make_shared<Waits>());

  // This rank's message for its next meeting, and anybody's of the last one it had by `meet`. Messages
  // alternate between two places: one stays until its rank has come to the next but one call.
  GateMessage& mine(std::uint64_t sequence) { return message(rank_, sequence); }
  GateMessage& message(int rank, std::uint64_t sequence);

  // Returns when every rank is here. Throws CommError, naming `where` and the rank at fault, when one has
  // died (noticed within a fraction of a second), left, or did not come in time; then at once for ever.
  // `still_wanted` is called now and then during the wait, and may throw to end it.
  void meet(
      const Fingerprint& where, const StillWanted& still_wanted = [] {});
  // No rank will come again after this one has left.
  void leave();
  // This rank fails in the call of that number, and stays.
  void fail_in(std::uint64_t sequence);
  // Nor does it come to any other call: all who do fail, and are told why.
  void give_up(const std::string& why);
  // Throws if a rank has died, or one of `members` has failed in `call`.
  void check(const Fingerprint& call, std::span<const int> members);

 private:
  enum class Cause : std::uint32_t { none, died, left, late, failed };
  struct Desk;
  struct Control;

  bool spin(std::uint32_t generation) const;
  bool sleep(std::uint32_t generation, const StillWanted& still_wanted);
  bool find_fault(std::uint32_t generation);
  bool find_dead();
  void break_up(Cause cause, int rank);
  [[noreturn]] void fail(const Fingerprint& where) const;
  std::string reason(Cause cause, int rank) const;
  int number(int rank) const { return numbers_[static_cast<std::size_t>(rank)]; }
  std::string name(int rank) const { return "rank " + std::to_string(number(rank)); }
  bool missing(int rank, std::uint32_t generation) const;
  int first_missing(std::uint32_t generation) const;
  Desk& desk(int rank) const;

  std::shared_ptr<Segment> segment_;
  Control* control_;
  int rank_;
  int ranks_;
  std::vector<int> numbers_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<Waits> waits_;
  int spins_;
};

}  // namespace zero

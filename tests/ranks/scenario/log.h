// What a run shows of itself, to be compared with what another one shows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ranks/scenario/scenario.h"

namespace zero::test::scenario {

// Whose a value is, and so with what it is compared.
enum class Whose : std::uint8_t {
  everyones,      // on all ranks alike
  ranks,          // of a rank, in whatever order micro-batches go to ranks
  micro_batches,  // of one, whichever rank has it; its number is in the name
  turns           // of what this rank has had so far, in that order
};

struct Seen {
  int event;  // from 1 on
  std::string what;
  at::Tensor value;
  Whose whose;
};

class Log {
 public:
  void at_event(int event) { event_ = event; }
  int event() const { return event_; }
  // Once at an event by each name, by which runs are compared; throws otherwise.
  void see(const std::string& what, const at::Tensor& value, Whose whose = Whose::everyones);
  void see(const std::string& what, double value, Whose whose = Whose::everyones);
  const std::vector<Seen>& all() const { return all_; }
  // Null where there is none.
  const Seen* find(int event, const std::string& what) const;

 private:
  int event_ = 0;
  std::vector<Seen> all_;
  std::map<std::pair<int, std::string>, std::size_t> by_name_;
};

// Words for the first difference; empty where there is none: in bits, or, with a tolerance, where `b` has the same, at
// events before `end`.
std::string difference(const Log& a, const Log& b);
std::string difference(const Log& a, const Log& b, double tolerance, int end);
// The first event at which they are further apart; beyond all where they never are.
int first_apart(const Log& a, const Log& b, double tolerance);
// Of all ranks' logs, where other ranks have had other micro-batches.
std::string difference_in_other_order(const std::vector<Log>& a, const std::vector<Log>& b);
// Between ranks, of what is to be alike.
std::string difference_between_ranks(const std::vector<Log>& ranks);

}  // namespace zero::test::scenario

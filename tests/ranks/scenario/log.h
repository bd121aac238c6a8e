// What a run shows of itself, to be compared with what another one shows.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "ranks/scenario/scenario.h"

namespace zero::test::scenario {

struct Seen {
  int event;  // from 1 on
  std::string what;
  at::Tensor value;
  bool everywhere;  // on all ranks alike
};

class Log {
 public:
  void at_event(int event) { event_ = event; }
  int event() const { return event_; }
  void see(const std::string& what, const at::Tensor& value, bool everywhere = true);
  void see(const std::string& what, double value, bool everywhere = true);
  const std::vector<Seen>& all() const { return all_; }
  // Null where there is none.
  const Seen* find(int event, const std::string& what) const;

 private:
  int event_ = 0;
  std::vector<Seen> all_;
};

// Words for the first difference; empty where there is none: in bits, or, with a tolerance, where `b` has the same.
std::string difference(const Log& a, const Log& b);
std::string difference(const Log& a, const Log& b, double tolerance);
// Between ranks, of what is to be alike.
std::string difference_between_ranks(const std::vector<Log>& ranks);

}  // namespace zero::test::scenario

// Whether a scenario goes as the documentation says.
#pragma once

#include <chrono>
#include <string>

#include "ranks/scenario/scenario.h"

namespace zero::test::scenario {

struct Verdict {
  enum class Kind : std::uint8_t { good, refused, error, ranks, bits, plain } kind = Kind::good;
  std::string text = {};
  bool failed() const { return kind != Kind::good && kind != Kind::refused; }
};

// `limit` of time for each operation.
Verdict judge(const Scenario& scenario, std::chrono::milliseconds limit);

// A smaller scenario that fails in the same way.
Scenario shrink(Scenario failing, Verdict& verdict);

}  // namespace zero::test::scenario

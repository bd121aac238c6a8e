// Faults of all ranks. No torch.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "comm/gathered_texts.h"

namespace zero {

// What work fails with; empty where it does not.
template <class Work>
std::string fault_of(Work&& work) {
  try {
    work();
    return {};
  } catch (const std::exception& error) {
    return *error.what() ? error.what() : "it failed";
  }
}

// "rank 1: ...; rank 2: ..." of those that have a fault. Collective.
inline std::string gather_faults(const Communicator& communicator, const std::string& mine) {
  std::string faults;
  const std::vector<std::string> texts = gather_texts(communicator, mine);
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    if (!texts[rank].empty())
      faults += (faults.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " + texts[rank];
  return faults;
}

}  // namespace zero

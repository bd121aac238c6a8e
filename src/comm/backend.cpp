#include "comm/backend.h"

#include <algorithm>

#include "zero/error.h"

namespace zero {

void reject_call(Collective operation, const CommunicatorImpl& group, const std::string& what) {
  throw ConfigError("rank " + std::to_string(group.rank()) + ": " + std::string(name(operation)) + ": " + what);
}

void require_cpu(Collective operation, const CommunicatorImpl& group, ConstView a, ConstView b) {
  if (a.device < 0 && b.device < 0) return;
  reject_call(operation, group,
              "memory of device " + std::to_string(a.device < 0 ? b.device : a.device) + ", but the backend \"" +
                  std::string(group.backend()) + "\" works on CPU memory");
}

std::vector<int> split_group(std::span<const SplitCall> calls, int rank) {
  const auto key = [&](int r) { return calls[static_cast<std::size_t>(r)].key; };
  std::vector<int> members;
  for (int r = 0; r < static_cast<int>(calls.size()); ++r)
    if (calls[static_cast<std::size_t>(r)].color == calls[static_cast<std::size_t>(rank)].color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return key(a) < key(b); });
  return members;
}

}  // namespace zero

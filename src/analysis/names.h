// Names as small numbers. No torch.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace zero {

// What runs, as numbers of names: an operator, and autograd's node that runs it. 0: none.
struct Running {
  int operation = 0;
  int node = 0;

  bool operator==(const Running&) const = default;
};

class Names {
 public:
  Names() { number(""); }

  // The same for the same name; 0 for the empty one. What was asked for from the same place lately is found at once.
  int number(std::string_view name) {
    int& recent = recent_[(reinterpret_cast<std::uintptr_t>(name.data()) >> 3) % recent_.size()];
    if (names_.empty() || names_[static_cast<std::size_t>(recent)] != name) recent = numbered(name);
    return recent;
  }
  const std::string& name(int number) const { return names_[static_cast<std::size_t>(number)]; }

 private:
  int numbered(std::string_view name) {
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return found->second;
    const int next = static_cast<int>(names_.size());
    numbers_.emplace(names_.emplace_back(name), next);
    return next;
  }

  std::deque<std::string> names_;  // whose addresses stay
  std::unordered_map<std::string_view, int> numbers_;
  std::array<int, 256> recent_{};
};

}  // namespace zero

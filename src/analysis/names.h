// Names as small numbers. No torch.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace zero {

class Names {
 public:
  Names() { number(""); }

  // The same for the same name; 0 for the empty one.
  int number(std::string_view name) {
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return found->second;
    const int next = static_cast<int>(names_.size());
    numbers_.emplace(names_.emplace_back(name), next);
    return next;
  }
  const std::string& name(int number) const { return names_[static_cast<std::size_t>(number)]; }

 private:
  std::deque<std::string> names_;  // whose addresses stay
  std::unordered_map<std::string_view, int> numbers_;
};

}  // namespace zero

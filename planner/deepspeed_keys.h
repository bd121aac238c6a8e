// What becomes of each key of DeepSpeed's configuration. No torch.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace planner {

enum class Fate {
  read,      // it says something about the plan
  harmless,  // it changes neither the memory nor the plan
  refused,   // libzero does not have it
};

struct KeyRule {
  std::string_view path;  // with dots; "tensorboard.*" is everything below
  Fate fate = Fate::read;
  std::string_view text;  // what libzero does instead
  // Of what is refused: values, as JSON separated by blanks, that switch it off.
  std::string_view off = {};
};

// The rule of a key, or nullptr for one that DeepSpeed does not document.
const KeyRule* rule_of_key(std::string_view path);
// Of what may be written.
std::vector<std::string> known_keys();
// Whether a key only holds others, and without any says nothing.
bool is_section(std::string_view path);

}  // namespace planner

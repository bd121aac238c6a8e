#include "cli/complain.h"

#include <cstdlib>
#include <iostream>
#include <limits>
#include <string_view>

#include "base/number.h"

namespace cli {
namespace {

std::string rank() {
  const char* const variable = std::getenv("RANK");
  const bool known = variable && zero::read_number<int>(variable, 0, std::numeric_limits<int>::max()).fault.empty();
  return known ? "rank " + std::string(variable) + ": " : "";
}

}  // namespace

void complain(const std::string& text) {
  const std::string who = rank();
  std::string line = "zero: " + (text.starts_with(who) ? "" : who);
  std::string_view rest = text;
  for (std::size_t end = rest.find('\n'); end != rest.npos; end = rest.find('\n')) {
    line += zero::escaped(rest.substr(0, end)) + "\n";
    rest.remove_prefix(end + 1);
  }
  std::cerr << line + zero::escaped(rest) + "\n" << std::flush;
}

}  // namespace cli

#include <array>
#include <cctype>
#include <cmath>
#include <string>
#include <string_view>

#include "base/number.h"
#include "base/text.h"
#include "zero/error.h"
#include "zero/plan.h"

namespace zero {
namespace {

constexpr std::string_view kPrefixes = "kmgt";

// What a unit multiplies by: B, K, KB, KiB, M, ...; 0 for another.
double factor_of(std::string unit) {
  for (char& each : unit) each = static_cast<char>(std::tolower(static_cast<unsigned char>(each)));
  if (unit.empty() || unit == "b") return 1;
  const std::size_t power = kPrefixes.find(unit.front());
  const std::string rest = unit.substr(1);
  if (power == kPrefixes.npos || (!rest.empty() && rest != "b" && rest != "ib")) return 0;
  return std::pow(rest == "ib" ? 1024.0 : 1000.0, static_cast<double>(power + 1));
}

}  // namespace

ActivationBudget ActivationBudget::named(std::string_view text) {
  constexpr double kMost = 1e18;
  if (text.empty()) return {};
  const std::size_t digits = std::min(text.find_first_not_of("0123456789.eE+-"), text.size());
  const std::string unit(text.substr(digits));
  const bool share = unit == "%";
  const auto read = read_number<double>(text.substr(0, digits), 0, kMost);
  const double value = read.value * (share ? .01 : factor_of(unit));
  if (!read.fault.empty() || !(value > 0) || value > (share ? 1 : kMost))
    throw ConfigError(in_quotes(text) + " is no budget for activations",
                      "write bytes, as 2GiB or 500M, or a share of what they take without one, as 50%");
  if (share) return {.share = value};
  return {.bytes = static_cast<std::int64_t>(std::llround(value))};
}

std::string ActivationBudget::text() const {
  if (share > 0) return shortest(100 * share) + "%";
  return bytes > 0 ? std::to_string(bytes) : "";
}

}  // namespace zero

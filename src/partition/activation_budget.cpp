#include <string>
#include <string_view>

#include "base/number.h"
#include "base/suffixes.h"
#include "base/text.h"
#include "zero/error.h"
#include "zero/plan.h"

namespace zero {

ActivationBudget ActivationBudget::named(std::string_view text) {
  if (text.empty()) return {};
  if (text.ends_with('%')) {
    const auto percent = read_number<double>(text.substr(0, text.size() - 1), 0, 100);
    if (percent.fault.empty() && percent.value > 0) return {.share = percent.value / 100};
  } else if (const auto bytes = read_bytes(text); bytes && *bytes > 0) {
    return {.bytes = *bytes};
  }
  throw ConfigError(in_quotes(text) + " is no budget for activations",
                    "write bytes, as 2GiB or 500M, or a share of what they take without one, as 50%");
}

std::string ActivationBudget::text() const {
  if (share > 0) return shortest(100 * share) + "%";
  return bytes > 0 ? std::to_string(bytes) : "";
}

}  // namespace zero

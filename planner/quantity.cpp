#include "planner/quantity.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/number.h"
#include "base/suffixes.h"
#include "base/text.h"
#include "zero/error.h"

namespace planner {
namespace {

constexpr std::int64_t kThousand = 1000, kMillion = 1'000'000, kBillion = 1'000'000'000, kTrillion = 1'000'000'000'000;
using zero::parted, zero::Suffix, zero::trimmed;

constexpr double kMost = zero::kMostCounted;

constexpr std::array<Suffix, 6> kCounts{
    {{"", 1}, {"k", kThousand}, {"m", kMillion}, {"b", kBillion}, {"g", kBillion}, {"t", kTrillion}}};
constexpr std::array<Suffix, 12> kBandwidths{{{"Tbit", kTrillion / 8},
                                              {"Tbit/s", kTrillion / 8},
                                              {"Gbit", kBillion / 8},
                                              {"Gbit/s", kBillion / 8},
                                              {"gbit", kBillion / 8},
                                              {"gbit/s", kBillion / 8},
                                              {"Mbit", kMillion / 8},
                                              {"Mbit/s", kMillion / 8},
                                              {"mbit", kMillion / 8},
                                              {"mbit/s", kMillion / 8},
                                              {"GB/s", kBillion},
                                              {"MB/s", kMillion}}};

std::int64_t whole(std::optional<std::int64_t> count, std::string_view text, std::int64_t least, const char* example) {
  if (!count || *count < least)
    throw zero::ConfigError(zero::in_quotes(text) + " is not a size from " + std::to_string(least) + " to 1e18",
                            example);
  return *count;
}

}  // namespace

std::int64_t parameters_of(std::string_view text) {
  return whole(zero::read_count(text, kCounts), text, 1, "write 7.5e9, 7.5B, 350M or 1T");
}

std::int64_t bytes_of(std::string_view text, std::int64_t least) {
  constexpr const char* example = "write 80GB for 80e9 bytes, or 80GiB";
  const std::int64_t bytes = whole(zero::read_bytes(text), text, least, example);
  if (bytes > 0 && bytes < kMillion && parted(text).second.empty())
    throw zero::ConfigError(
        zero::in_quotes(text) + " has no unit, so it is " + in_units(bytes),
        "write " + std::string(trimmed(text)) + "GB, or " + std::string(trimmed(text)) + "B if bytes are meant");
  return bytes;
}

double bandwidth_of(std::string_view text) {
  const auto [number, unit] = parted(text);
  const auto read = zero::read_number<double>(number, 0, kMost);
  const auto suffix = std::ranges::find(kBandwidths, unit, &Suffix::name);
  const double product = suffix == kBandwidths.end() ? 0 : read.value * static_cast<double>(suffix->factor);
  if (product < 1 || product > kMost)
    throw zero::ConfigError(zero::in_quotes(text) + " is no speed of a network",
                            "write 100Gbit or 500Mbit, which are bits a second, or 12.5GB/s");
  return product;
}

double rounded(double value, int digits) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific, digits - 1).ptr;
  double result = value;
  std::from_chars(buffer, end, result);
  return result;
}

std::string three_digits(double value) {
  const double near = std::abs(rounded(value, 3));
  if (near == 0) return "0";
  const int decimals = near >= 100 ? 0 : near >= 10 ? 1 : near >= 1 ? 2 : 3;
  return zero::fixed(value, decimals);
}

std::string in_units(std::int64_t bytes) {
  constexpr std::array<Suffix, 3> units{{{" GB", kBillion}, {" MB", kMillion}, {" kB", kThousand}}};
  const auto value = static_cast<double>(bytes);
  for (const Suffix& unit : units) {
    const auto factor = static_cast<double>(unit.factor);
    if (rounded(std::abs(value), 3) >= factor) return three_digits(value / factor) + std::string(unit.name);
  }
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

}  // namespace planner

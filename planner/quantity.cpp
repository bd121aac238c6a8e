#include "planner/quantity.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>
#include <string>

#include "zero/error.h"

namespace planner {
namespace {

struct Suffix {
  std::string_view name;
  double factor;
};

constexpr std::array<Suffix, 6> kCounts{{{"", 1}, {"k", 1e3}, {"m", 1e6}, {"b", 1e9}, {"g", 1e9}, {"t", 1e12}}};
constexpr std::array<Suffix, 14> kBytes{{{"", 1},
                                         {"b", 1},
                                         {"k", 1e3},
                                         {"kb", 1e3},
                                         {"kib", 0x1p10},
                                         {"m", 1e6},
                                         {"mb", 1e6},
                                         {"mib", 0x1p20},
                                         {"g", 1e9},
                                         {"gb", 1e9},
                                         {"gib", 0x1p30},
                                         {"t", 1e12},
                                         {"tb", 1e12},
                                         {"tib", 0x1p40}}};

constexpr std::array<Suffix, 12> kBandwidths{{{"Tbit", 1e12 / 8},
                                              {"Tbit/s", 1e12 / 8},
                                              {"Gbit", 1e9 / 8},
                                              {"Gbit/s", 1e9 / 8},
                                              {"gbit", 1e9 / 8},
                                              {"gbit/s", 1e9 / 8},
                                              {"Mbit", 1e6 / 8},
                                              {"Mbit/s", 1e6 / 8},
                                              {"mbit", 1e6 / 8},
                                              {"mbit/s", 1e6 / 8},
                                              {"GB/s", 1e9},
                                              {"MB/s", 1e6}}};

std::string lower_without_spaces(std::string_view text) {
  std::string result;
  for (const char c : text)
    if (c != ' ') result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::int64_t whole(std::string_view text, std::span<const Suffix> suffixes, const char* example) {
  const std::string plain = lower_without_spaces(text);
  double value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  const std::string_view rest(end, static_cast<std::size_t>(plain.data() + plain.size() - end));
  const auto suffix = std::ranges::find(suffixes, rest, &Suffix::name);
  const double product = suffix == suffixes.end() ? 0 : value * suffix->factor;
  if (error != std::errc() || !(product >= 1) || product > 1e18)
    throw zero::ConfigError("'" + std::string(text) + "' is not a size", example);
  return std::llround(product);
}

}  // namespace

std::int64_t parameters_of(std::string_view text) {
  return whole(text, kCounts, "write 7.5e9, 7.5B, 350M or 1T");
}

std::int64_t bytes_of(std::string_view text) {
  return whole(text, kBytes, "write 80GB for 80e9 bytes, or 80GiB");
}

double bandwidth_of(std::string_view text) {
  std::string plain(text);
  std::erase(plain, ' ');
  double value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  const std::string_view rest(end, static_cast<std::size_t>(plain.data() + plain.size() - end));
  const auto suffix = std::ranges::find(kBandwidths, rest, &Suffix::name);
  const double product = suffix == kBandwidths.end() ? 0 : value * suffix->factor;
  if (error != std::errc() || !(product >= 1) || product > 1e18)
    throw zero::ConfigError("'" + std::string(text) + "' is no speed of a network",
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
  char buffer[400];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed, decimals).ptr;
  return {buffer, end};
}

std::string in_units(std::int64_t bytes) {
  constexpr std::array<Suffix, 3> units{{{" GB", 1e9}, {" MB", 1e6}, {" kB", 1e3}}};
  const auto value = static_cast<double>(bytes);
  for (const Suffix& unit : units)
    if (rounded(std::abs(value), 3) >= unit.factor) return three_digits(value / unit.factor) + std::string(unit.name);
  return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
}

}  // namespace planner

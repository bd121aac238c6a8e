// Numbers as people write them: in options, variables and files of text.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "base/text.h"

namespace zero {

// A number, or what keeps a text from being one, in words that end a sentence about where it stands.
template <class T>
struct Reading {
  T value{};
  std::string fault;
};

namespace number_detail {

inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

inline std::string bound(double value) {
  return shortest(value);
}
template <std::integral T>
std::string bound(T value) {
  return std::to_string(value);
}

// Some programs read 010 as eight, some as ten.
inline bool leads_with_zero(std::string_view digits) {
  return digits.size() > 1 && digits[0] == '0' && is_digit(digits[1]);
}

template <class T>
std::string outside(std::string_view text, bool low, T least, T most) {
  return in_quotes(text) + (low ? " is below " + bound(least) : " is above " + bound(most));
}

}  // namespace number_detail

// The decimal integer from `least` to `most` that all of `text` is: no blanks, no "+", no leading zeros.
template <std::integral T>
Reading<T> read_number(std::string_view text, std::type_identity_t<T> least, std::type_identity_t<T> most) {
  namespace detail = number_detail;
  const bool negative = text.starts_with('-');
  const std::string_view digits = text.substr(negative ? 1 : 0);
  if (digits.empty() || !std::ranges::all_of(digits, detail::is_digit))
    return {{}, in_quotes(text) + " is not an integer"};
  if (detail::leads_with_zero(digits))
    return {{}, in_quotes(text) + " begins with a zero, which some take for octal: leave it out"};
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < least || value > most)
    return {{}, detail::outside(text, negative || (error == std::errc() && value < least), least, most)};
  return {value, {}};
}

// The finite decimal number from `least` to `most` that all of `text` is, likewise; with a point or an exponent, or
// not.
template <std::floating_point T>
Reading<T> read_number(std::string_view text, std::type_identity_t<T> least, std::type_identity_t<T> most) {
  namespace detail = number_detail;
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::invalid_argument || end != text.data() + text.size())
    return {{}, in_quotes(text) + " is not a number"};
  if (detail::leads_with_zero(text.substr(text.starts_with('-') ? 1 : 0)))
    return {{}, in_quotes(text) + " begins with a zero: leave it out"};
  if (error != std::errc()) return {{}, in_quotes(text) + " is beyond the numbers of 64 bits"};
  if (!std::isfinite(value)) return {{}, in_quotes(text) + " is not a finite number"};
  if (value < least || value > most) return {{}, detail::outside(text, value < least, least, most)};
  return {value, {}};
}

}  // namespace zero

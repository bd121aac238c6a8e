// Checks of options' values.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <string_view>
#include <type_traits>

#include "zero/error.h"

namespace cli {

template <class T>
std::string text(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    char buffer[64];
    return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
  } else {
    return value;
  }
}

// Checked as the number that the option will hold, with the bounds in words.
template <class T>
CLI::Validator at_least(T least) {
  return CLI::Validator(
      [least](std::string& input) -> std::string {
        T value{};
        if (!CLI::detail::lexical_cast(input, value)) return "'" + input + "' is not a number of this kind";
        if (value >= least) return {};
        return input + " is below " + text(least);
      },
      "", "");
}

// Whatever `read` reads, which throws zero::ConfigError for all else.
template <class T>
CLI::Validator read_by(T (*read)(std::string_view)) {
  return CLI::Validator(
      [read](const std::string& input) -> std::string {
        try {
          static_cast<void>(read(input));
          return {};
        } catch (const zero::ConfigError& error) {
          return error.what();
        }
      },
      "", "");
}

}  // namespace cli

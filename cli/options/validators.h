// The kinds of options that commands have, and how each reads what it is given.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/number.h"
#include "cli/options/options.h"

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

// Upper bounds of what a machine can have or a run can need, with much room; what is beyond them is a slip.
inline constexpr int kMostRanks = 1 << 20;
inline constexpr int kMostThreads = 1 << 12;

namespace validators_detail {

template <class T>
struct Held {
  using type = T;
  static std::string default_text(const T& value) { return text(value); }
};
template <class T>
struct Held<std::optional<T>> {
  using type = T;
  static std::string default_text(const std::optional<T>&) { return {}; }
};

// "--ranks" of "-n,--ranks".
std::string long_name(const std::string& names);

}  // namespace validators_detail

// A number from `least` to `most`, which is finite where it is real.
template <class V, class T = typename validators_detail::Held<V>::type>
CLI::Option* add_number(CLI::App& command, const std::string& names, V& value, const std::string& text,
                        std::type_identity_t<T> least, std::type_identity_t<T> most = std::numeric_limits<T>::max()) {
  const auto read = [&value, least, most, name = validators_detail::long_name(names)](const std::string& given) {
    const auto number = zero::read_number<T>(given, least, most);
    if (!number.fault.empty()) throw UsageError(name + ": " + number.fault);
    value = number.value;
  };
  return command.add_option_function<std::string>(names, read, text)
      ->type_name(std::is_integral_v<T> ? "INT" : "FLOAT")
      ->default_str(validators_detail::Held<V>::default_text(value));
}

// How often ranks that failed are started again.
CLI::Option* add_restarts(CLI::App& command, int& restarts, const std::string& group);

// Bytes, with a unit or without.
CLI::Option* add_size(CLI::App& command, const std::string& name, std::uint64_t& value, const std::string& text);

std::vector<std::string> texts(const std::vector<std::string_view>& names);

// One of `names`, which stand in the help.
CLI::Validator choice(const std::vector<std::string>& names);
std::string with_choices(const std::string& text, const std::vector<std::string>& names);
CLI::Option* add_choice(CLI::App& command, const std::string& name, std::string& value, const std::string& text,
                        const std::vector<std::string>& names);
CLI::Option* add_choice(CLI::App& command, const std::string& name, std::optional<std::string>& value,
                        const std::string& text, const std::vector<std::string>& names);
// Several, between commas.
CLI::Option* add_choices(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                         const std::string& text, const std::vector<std::string>& names);

// A path or the name of something that has one, which is not empty.
CLI::Option* add_path(CLI::App& command, const std::string& name, std::string& value, const std::string& text,
                      const char* type = "FILE");

// The text or tokens of --data, and --tokens, which says how to read them. Returns the former.
CLI::Option* add_data(CLI::App& command, std::string& data, int& tokens, const std::string& group);

// A result that is also written to a file; and, behind it in the help, that itself.
void add_json(CLI::App& command, std::string& path, const std::string& what = "the result");

// Whatever `read` reads, which throws zero::ConfigError for all else.
template <class Read>
CLI::Validator read_by(Read read) {
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

// A text that `read` reads.
template <class Value, class Read>
CLI::Option* add_read(CLI::App& command, const std::string& name, Value& value, const std::string& text, Read read,
                      const char* type, const std::string& group) {
  return command.add_option(name, value, text)->check(read_by(read))->type_name(type)->group(group);
}

}  // namespace cli

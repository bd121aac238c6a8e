#include "models/json.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "zero/error.h"

namespace models {
namespace {

constexpr int kDeepest = 64;

}  // namespace

Json json_object(const std::string& text, const std::string& source) {
  const auto check_depth = [&](int depth, Json::parse_event_t event, const Json&) {
    const bool begins = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (begins && depth >= kDeepest)
      throw zero::ConfigError(source + " is nested deeper than " + std::to_string(kDeepest) + " levels",
                              "correct its syntax");
    return true;
  };
  Json json = Json::parse(text, check_depth, false);
  if (!json.is_object()) throw zero::ConfigError(source + " is not a JSON object", "correct its syntax");
  return json;
}

Json json_file(const std::string& path, const std::string& hint) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) throw zero::ConfigError("cannot read '" + path + "'", hint);
  return json_object({std::istreambuf_iterator<char>(file), {}}, path);
}

std::optional<std::int64_t> integer_within(const Json& value, std::int64_t least, std::int64_t most) {
  if (!value.is_number_integer()) return {};
  if (value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>())) return {};
  const auto number = value.get<std::int64_t>();
  return number >= least && number <= most ? std::optional(number) : std::nullopt;
}

std::int64_t integer_of(const Json& value, std::int64_t least, std::int64_t most, const std::string& source,
                        const std::string& key) {
  if (const auto number = integer_within(value, least, most)) return *number;
  const bool low = integer_within(value, std::numeric_limits<std::int64_t>::min(), most).has_value();
  const std::string fault = !value.is_number_integer() ? "not an integer"
                            : low                      ? "below " + std::to_string(least)
                                                       : "too large: at most " + std::to_string(most);
  throw zero::ConfigError(source + ": \"" + key + "\" is " + value.dump() + ", " + fault, "correct it");
}

std::optional<std::int64_t> product(std::initializer_list<std::int64_t> counts) {
  std::int64_t result = 1;
  for (const std::int64_t count : counts)
    if (__builtin_mul_overflow(result, count, &result)) return std::nullopt;
  return result;
}

}  // namespace models

// Values that are read from and written to JSON by one list of their fields: what is written can be read, and what
// the list does not know is an error. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "models/json.h"
#include "zero/error.h"

namespace planner {

using models::Json;

template <class T>
struct Field {
  using Choices = std::vector<std::string_view> (*)();
  const char* key;
  std::variant<std::string T::*, bool T::*, int T::*, std::int64_t T::*, double T::*> member;
  bool required = false;
  double least = 0;  // of numbers
  double most = std::numeric_limits<double>::max();
  Choices choices = nullptr;  // of strings; none: any
};

namespace fields_detail {

[[noreturn]] void fail(const std::string& source, const std::string& key, const std::string& what,
                       const std::string& hint);
[[noreturn]] void refuse_choice(const std::string& source, const std::string& key, const std::string& value,
                                const std::vector<std::string_view>& choices);
[[noreturn]] void refuse_other_than_object(const std::string& source);
[[noreturn]] void refuse_key(const std::string& source, const std::string& key, const std::vector<std::string>& known);
// Of the type that is to be read, or fails.
void require_type(bool good, const Json& value, const char* type, const std::string& source, const std::string& key);
void require_within(double value, double least, double most, const std::string& source, const std::string& key);

// The bound as an integer that the type holds.
template <class V>
std::int64_t bound(double value) {
  const auto highest = static_cast<double>(std::numeric_limits<V>::max());
  return value >= highest ? std::numeric_limits<V>::max() : static_cast<std::int64_t>(value);
}

template <class V, class T>
V read_value(const Json& value, const Field<T>& field, const std::string& source) {
  if constexpr (std::is_same_v<V, std::string>) {
    require_type(value.is_string(), value, "a string", source, field.key);
  } else if constexpr (std::is_same_v<V, bool>) {
    require_type(value.is_boolean(), value, "true or false", source, field.key);
  } else if constexpr (std::is_same_v<V, double>) {
    require_type(value.is_number(), value, "a number", source, field.key);
    require_within(value.get<double>(), field.least, field.most, source, field.key);
  } else {
    return static_cast<V>(models::integer_of(value, bound<V>(field.least), bound<V>(field.most), source, field.key));
  }
  return value.get<V>();
}

template <class T>
void read_field(T& into, const Field<T>& field, const Json& value, const std::string& source) {
  std::visit(
      [&](auto member) {
        using V = std::remove_reference_t<decltype(into.*member)>;
        const V read = read_value<V>(value, field, source);
        if constexpr (std::is_same_v<V, std::string>)
          if (field.choices) {
            const auto choices = field.choices();
            if (std::ranges::find(choices, read) == choices.end()) refuse_choice(source, field.key, read, choices);
          }
        into.*member = read;
      },
      field.member);
}

}  // namespace fields_detail

template <class T>
Json write_fields(const T& value, std::span<const Field<T>> fields) {
  Json json = Json::object();
  for (const Field<T>& field : fields) std::visit([&](auto member) { json[field.key] = value.*member; }, field.member);
  return json;
}

// Throws zero::ConfigError, naming `source` and the key, for a key that is unknown or missing and for a value that is
// of another type, out of range or not among the choices.
template <class T>
T read_fields(const Json& json, std::span<const Field<T>> fields, const std::string& source) {
  namespace detail = fields_detail;
  if (!json.is_object()) detail::refuse_other_than_object(source);
  T result;
  std::vector<std::string> known;
  for (const Field<T>& field : fields) known.emplace_back(field.key);
  for (const auto& [key, value] : json.items()) {
    const std::string& name = key;
    const auto field = std::ranges::find_if(fields, [&](const Field<T>& each) { return name == each.key; });
    if (field == fields.end()) detail::refuse_key(source, key, known);
    detail::read_field(result, *field, value, source);
  }
  for (const Field<T>& field : fields)
    if (field.required && !json.contains(field.key)) detail::fail(source, field.key, "is missing", "add it");
  return result;
}

}  // namespace planner

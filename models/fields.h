// Values that are read from and written to JSON by one list of their fields: what is written can be read, and what the
// list does not know is an error. The list of a type is `each_field(value, visit)` beside it, which calls
// `visit("key", value.member, rules)` for each. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "models/json.h"
#include "zero/error.h"

namespace models {

struct FieldRules {
  using Choices = std::vector<std::string_view> (*)();
  bool required = false;
  double least = 0;  // of numbers
  double most = std::numeric_limits<double>::max();
  Choices choices = nullptr;  // of strings, beside what the value is before; none: any
  bool null = false;          // JSON has null for what is not a number, not there (-1) or empty, whatever its bounds
  bool sparse = false;        // JSON does not have what is empty
};

class FieldWriter {
 public:
  template <class V>
  void operator()(std::string_view key, const V& value, const FieldRules& rules = {});
  // Fields of an object of their own, which `list` visits.
  template <class List>
  void group(std::string_view key, const List& list) {
    FieldWriter inner;
    list(inner);
    json[std::string(key)] = std::move(inner.json);
  }

  Json json = Json::object();
};

class FieldReader {
 public:
  template <class V>
  void operator()(std::string_view key, V& value, const FieldRules& rules = {});
  void group(std::string_view key, const std::function<void(FieldReader&)>& list);

  // What was visited, now. See read_fields().
  void read(const Json& json, const std::string& source) const;

 private:
  struct Field {
    std::string key;
    bool required = false;
    std::function<void(const Json& json, const std::string& source)> read;
  };
  std::vector<Field> fields_;
};

template <class T>
Json write_fields(T value) {
  FieldWriter writer;
  each_field(value, writer);
  return std::move(writer.json);
}

// Throws zero::ConfigError, naming `source` and the key, for a key that is unknown or missing and for a value that is
// of another type, out of range or not among the choices.
template <class T>
T read_fields(const Json& json, const std::string& source) {
  T result;
  FieldReader reader;
  each_field(result, reader);
  reader.read(json, source);
  return result;
}

namespace fields_detail {

// Of a value, for messages.
struct Place {
  std::string source, key;
};

[[noreturn]] void fail(const Place& place, const std::string& what, const std::string& hint);

void read_value(bool& value, const Json& json, const FieldRules& rules, const Place& place);
void read_value(int& value, const Json& json, const FieldRules& rules, const Place& place);
void read_value(std::int64_t& value, const Json& json, const FieldRules& rules, const Place& place);
void read_value(double& value, const Json& json, const FieldRules& rules, const Place& place);
void read_value(std::string& value, const Json& json, const FieldRules& rules, const Place& place);
inline void read_value(Json& value, const Json& json, const FieldRules&, const Place&) {
  value = json;
}
void require_list(const Json& json, const Place& place);

// What null stands for.
template <class V>
V nothing() {
  if constexpr (std::is_floating_point_v<V>) return std::numeric_limits<V>::quiet_NaN();
  if constexpr (std::is_integral_v<V>) return static_cast<V>(-1);
  return {};
}

template <class V>
concept HasFields = requires(V& value, FieldWriter& writer) {
  each_field(value, writer);
};
template <class V>
concept List = std::is_same_v<V, std::vector<typename V::value_type>>;
template <class V>
concept Optional = requires(V& value) {
  value.has_value();
};
template <class V>
concept Variant = requires(V& value) {
  value.valueless_by_exception();
};

template <class V>
Json written(const V& value, const FieldRules& rules) {
  if constexpr (HasFields<V>) {
    return write_fields(value);
  } else if constexpr (List<V>) {
    Json json = Json::array();
    for (const auto& each : value) json.push_back(written(each, rules));
    return json;
  } else if constexpr (Optional<V>) {
    return value ? Json(*value) : Json();
  } else if constexpr (Variant<V>) {
    return std::visit([](const auto& held) { return Json(held); }, value);
  } else {
    return rules.null && value == nothing<V>() ? Json() : Json(value);
  }
}

template <class V>
void read(V& value, const Json& json, const FieldRules& rules, const Place& place) {
  if constexpr (HasFields<V>) {
    value = read_fields<V>(json, place.source + ": " + shown_key(place.key));
  } else if constexpr (List<V>) {
    require_list(json, place);
    value.clear();
    for (const Json& each : json) read(value.emplace_back(), each, rules, place);
  } else if constexpr (Optional<V>) {
    value.reset();
    if (!json.is_null()) read(value.emplace(), json, rules, place);
  } else if constexpr (Variant<V>) {
    std::visit([&](auto& held) { read(held, json, rules, place); }, value);
  } else if (rules.null && json.is_null()) {
    value = nothing<V>();
  } else {
    read_value(value, json, rules, place);
  }
}

}  // namespace fields_detail

template <class V>
void FieldWriter::operator()(std::string_view key, const V& value, const FieldRules& rules) {
  if constexpr (requires { value.empty(); })
    if (rules.sparse && value.empty()) return;
  json[std::string(key)] = fields_detail::written(value, rules);
}

template <class V>
void FieldReader::operator()(std::string_view key, V& value, const FieldRules& rules) {
  const std::string name(key);
  fields_.push_back({name, rules.required, [&value, rules, name](const Json& json, const std::string& source) {
                       fields_detail::read(value, json, rules, {source, name});
                     }});
}

}  // namespace models

#include "models/fields.h"

#include <algorithm>
#include <sstream>

#include "base/text.h"

namespace models {
namespace fields_detail {
namespace {

std::string in_words(double value) {
  std::ostringstream text;
  text.precision(15);
  text << value;
  return text.str();
}

void require_type(bool good, const Json& json, const char* type, const Place& place) {
  if (!good) fail(place, "is " + shown(json) + ", not " + type, "correct it");
}

// The bound as an integer that the type holds.
template <class V>
std::int64_t bound(double value) {
  const auto highest = static_cast<double>(std::numeric_limits<V>::max());
  return value >= highest ? std::numeric_limits<V>::max() : static_cast<std::int64_t>(value);
}

template <class V>
V integer(const Json& json, const FieldRules& rules, const Place& place) {
  return static_cast<V>(integer_of(json, bound<V>(rules.least), bound<V>(rules.most), place.source, place.key));
}

}  // namespace

void fail(const Place& place, const std::string& what, const std::string& hint) {
  throw zero::ConfigError(zero::shown(place.source) + ": " + shown_key(place.key) + " " + what, hint);
}

void read_value(bool& value, const Json& json, const FieldRules&, const Place& place) {
  require_type(json.is_boolean(), json, "true or false", place);
  value = json.get<bool>();
}

void read_value(int& value, const Json& json, const FieldRules& rules, const Place& place) {
  value = integer<int>(json, rules, place);
}

void read_value(std::int64_t& value, const Json& json, const FieldRules& rules, const Place& place) {
  value = integer<std::int64_t>(json, rules, place);
}

void read_value(double& value, const Json& json, const FieldRules& rules, const Place& place) {
  require_type(json.is_number(), json, "a number", place);
  value = json.get<double>();
  if (rules.null) return;
  if (!(value >= rules.least)) fail(place, "is " + in_words(value) + ", below " + in_words(rules.least), "correct it");
  if (value > rules.most) fail(place, "is " + in_words(value) + ", too large", "correct it");
}

void read_value(std::string& value, const Json& json, const FieldRules& rules, const Place& place) {
  require_type(json.is_string(), json, "a string", place);
  const auto given = json.get<std::string>();
  const auto choices = rules.choices ? rules.choices() : std::vector<std::string_view>{given};
  if (given != value && std::ranges::find(choices, given) == choices.end())
    fail(place,
         "is " + zero::in_quotes(given, '"') +
             zero::did_you_mean(given, std::vector<std::string>(choices.begin(), choices.end())),
         "use one of " + zero::joined(choices));
  value = given;
}

void require_list(const Json& json, const Place& place) {
  require_type(json.is_array(), json, "a list", place);
}

}  // namespace fields_detail

void FieldReader::group(std::string_view key, const std::function<void(FieldReader&)>& list) {
  const std::string name(key);
  fields_.push_back({name, false, [list, name](const Json& json, const std::string& source) {
                       FieldReader inner;
                       list(inner);
                       inner.read(json, source + ": " + shown_key(name));
                     }});
}

// Whatever is wrong is found in the order of the file.
void FieldReader::read(const Json& json, const std::string& source) const {
  if (!json.is_object()) throw zero::ConfigError(zero::shown(source) + " is not a JSON object", "correct its syntax");
  for (const auto& [key, value] : json.items()) {
    const auto field = std::ranges::find(fields_, key, &Field::key);
    if (field != fields_.end()) {
      field->read(value, source);
      continue;
    }
    std::vector<std::string> known;
    for (const Field& each : fields_) known.push_back(each.key);
    fields_detail::fail({source, key}, "is not known" + zero::did_you_mean(key, known),
                        "remove it, or correct its name");
  }
  for (const Field& field : fields_)
    if (field.required && !json.contains(field.key)) fields_detail::fail({source, field.key}, "is missing", "add it");
}

}  // namespace models

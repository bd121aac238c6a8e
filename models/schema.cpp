#include "models/schema.h"

#include <limits>

#include "base/number.h"
#include "zero/error.h"

namespace models {
namespace {

std::string text_of(const Schema& schema) {
  return std::string(schema.name) + "/" + std::to_string(schema.version);
}

// 0: it is another schema.
int version_in(const std::string& text, const Schema& schema) {
  const std::string begin = std::string(schema.name) + "/";
  if (!text.starts_with(begin)) return 0;
  return zero::read_number<int>(text.substr(begin.size()), 1, std::numeric_limits<int>::max()).value;
}

std::string take_text(Json& json, const char* key, const std::string& source) {
  const auto found = json.find(key);
  if (found == json.end()) return {};
  if (!found->is_string())
    throw zero::ConfigError(zero::shown(source) + ": " + shown_key(key) + " is " + shown(*found) + ", not a string",
                            "correct it");
  std::string text = found->get<std::string>();
  json.erase(found);
  return text;
}

}  // namespace

std::string_view program_version() {
  return ZERO_VERSION;
}

Json stamped(const Schema& schema) {
  return {{"schema", text_of(schema)}, {"version", program_version()}};
}

void take_stamp(Json& json, const Schema& schema, const std::string& source) {
  const bool older = !json.contains("schema");
  const std::string said = take_text(json, "schema", source), writer = take_text(json, "version", source);
  const int version = version_in(said, schema);
  if (older || (version > 0 && version <= schema.version)) return;
  const std::string fault = zero::shown(source) + ": \"schema\" is " + zero::in_quotes(said, '"') + ", ";
  if (version == 0) throw zero::ConfigError(fault + "not " + text_of(schema), "give a file of that kind");
  throw zero::ConfigError(
      fault + "newer than the " + text_of(schema) + " that zero " + std::string(program_version()) + " reads",
      "use zero " + (writer.empty() ? "as new as it" : writer));
}

}  // namespace models

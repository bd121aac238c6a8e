#include "planner/fields.h"

#include <sstream>

#include "base/text.h"

namespace planner {

namespace fields_detail {
namespace {

std::string in_words(double value) {
  std::ostringstream text;
  text.precision(15);
  text << value;
  return text.str();
}

}  // namespace

void fail(const std::string& source, const std::string& key, const std::string& what, const std::string& hint) {
  throw zero::ConfigError(zero::shown(source) + ": " + models::shown_key(key) + " " + what, hint);
}

void refuse_choice(const std::string& source, const std::string& key, const std::string& value,
                   const std::vector<std::string_view>& choices) {
  const std::vector<std::string> known(choices.begin(), choices.end());
  fail(source, key, "is " + zero::in_quotes(value, '"') + zero::did_you_mean(value, known),
       "use one of " + zero::joined(choices));
}

void refuse_other_than_object(const std::string& source) {
  throw zero::ConfigError(zero::shown(source) + " is not a JSON object", "correct its syntax");
}

void refuse_key(const std::string& source, const std::string& key, const std::vector<std::string>& known) {
  fail(source, key, "is not known" + zero::did_you_mean(key, known), "remove it, or correct its name");
}

void require_type(bool good, const Json& value, const char* type, const std::string& source, const std::string& key) {
  if (!good) fail(source, key, "is " + models::shown(value) + ", not " + type, "correct it");
}

void require_within(double value, double least, double most, const std::string& source, const std::string& key) {
  if (!(value >= least)) fail(source, key, "is " + in_words(value) + ", below " + in_words(least), "correct it");
  if (value > most) fail(source, key, "is " + in_words(value) + ", too large", "correct it");
}

}  // namespace fields_detail
}  // namespace planner

// JSON that others wrote, for everything that reads settings, models and profiles. No torch.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace models {

using Json = nlohmann::ordered_json;

// The object that `text` is. Throws zero::ConfigError, naming `source`, line and column, for what is none, has a key
// twice in one object, or is nested too deeply: what goes through it calls itself for each level.
Json json_object(const std::string& text, const std::string& source);
// The same of a file; `hint` says what it should be.
Json json_file(const std::string& path, const std::string& hint);

// For messages: a value as it stands in a file, and a key in its quotes.
std::string shown(const Json& value);
std::string shown_key(const std::string& key);

// The number, where `value` is an integer from `least` to `most`.
std::optional<std::int64_t> integer_within(const Json& value, std::int64_t least, std::int64_t most);
// The same, or throws zero::ConfigError, naming `source` and `key`.
std::int64_t integer_of(const Json& value, std::int64_t least, std::int64_t most, const std::string& source,
                        const std::string& key);

// Of counts; none where it is more than 64 bits hold.
std::optional<std::int64_t> product(std::initializer_list<std::int64_t> counts);

}  // namespace models

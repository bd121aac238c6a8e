// JSON that somebody else may have written: every look at it says what is wanted, and a fault says where. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "zero/error.h"

namespace zero {

using Json = nlohmann::json;

// Throws CheckpointError for what is no JSON, names a member twice, or is nested deeper than `deepest`.
inline Json parse_json(std::string_view text, const std::string& source, int deepest = 16) {
  // The library would take it for the end of the text.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos)
    throw CheckpointError(source + ": has a zero byte at " + std::to_string(zero));
  std::vector<std::set<std::string>> members;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const bool begins = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (begins && depth >= deepest) throw CheckpointError(source + ": is nested too deeply");
    if (event == Json::parse_event_t::object_start) members.emplace_back();
    if (event == Json::parse_event_t::object_end) members.pop_back();
    if (event == Json::parse_event_t::key && !members.back().insert(parsed.get<std::string>()).second)
      throw CheckpointError(source + ": has the member " + in_quotes(parsed.get<std::string>()) + " twice");
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::exception& error) {
    throw CheckpointError(source + ": " + shown(error.what()));
  }
}

// A text as JSON writes it.
inline std::string json_string(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    throw CheckpointError(in_quotes(text) + " cannot be written as JSON: it is not UTF-8");
  }
}

// One value and where it is; no longer than what it was taken from.
class JsonNode {
 public:
  JsonNode(const Json& value, const std::string& source) : value_(value), source_(source) {}

  [[noreturn]] void fail(const std::string& fault) const {
    const std::string place = path();
    throw CheckpointError(source_ + ": " + (place.empty() ? "" : shown(place) + ": ") + fault);
  }

  // An object with all of `needed`, and no others but `allowed`.
  void members(std::initializer_list<std::string_view> needed,
               std::initializer_list<std::string_view> allowed = {}) const {
    if (!value_.is_object()) fail("is no object");
    for (const std::string_view key : needed)
      if (!value_.contains(key)) fail("the member " + in_quotes(key) + " is missing");
    for (const auto& [key, each] : value_.items())
      if (std::ranges::find(needed, key) == needed.end() && std::ranges::find(allowed, key) == allowed.end())
        fail("the member " + in_quotes(key) + " is not known");
  }
  bool has(std::string_view key) const { return value_.contains(key); }
  JsonNode operator[](std::string_view key) const { return {value_.at(key), *this, std::string(key), 0}; }

  // Of an object, with their names.
  void each_member(const std::function<void(const std::string& key, const JsonNode&)>& take) const {
    if (!value_.is_object()) fail("is no object");
    for (const auto& [key, each] : value_.items()) take(key, {each, *this, key, 0});
  }
  // Of an array.
  template <class Take>
  void each(Take&& take) const {
    if (!value_.is_array()) fail("is no array");
    for (std::size_t i = 0; i < value_.size(); ++i) take(JsonNode(value_[i], *this, {}, i));
  }
  template <class Make>
  auto all(Make&& make) const {
    std::vector<decltype(make(*this))> made;
    each([&](const JsonNode& node) { made.push_back(make(node)); });
    return made;
  }

  std::int64_t integer(std::int64_t least = 0, std::int64_t most = std::numeric_limits<std::int64_t>::max()) const {
    const bool unsigned_too_big =
        value_.is_number_unsigned() && value_.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
    if (!value_.is_number_integer() || unsigned_too_big) fail("is no integer of 64 bits");
    const auto number = value_.get<std::int64_t>();
    if (number < least || number > most)
      fail(std::to_string(number) + " is not between " + std::to_string(least) + " and " + std::to_string(most));
    return number;
  }
  std::uint64_t natural() const {
    if (!value_.is_number_unsigned()) fail("is no natural number of 64 bits");
    return value_.get<std::uint64_t>();
  }
  bool is_text() const { return value_.is_string(); }
  const std::string& text() const {
    if (!value_.is_string()) fail("is no text");
    return value_.get_ref<const std::string&>();
  }
  double number() const {
    if (!value_.is_number()) fail("is no number");
    return value_.get<double>();
  }

 private:
  JsonNode(const Json& value, const JsonNode& parent, std::string key, std::size_t index)
      : value_(value), source_(parent.source_), parent_(&parent), key_(std::move(key)), index_(index) {}

  std::string path() const {
    if (!parent_) return {};
    const std::string above = parent_->path();
    if (key_.empty()) return above + "[" + std::to_string(index_) + "]";
    return above.empty() ? key_ : above + "." + key_;
  }

  const Json& value_;
  const std::string& source_;
  const JsonNode* parent_ = nullptr;
  std::string key_;
  std::size_t index_ = 0;
};

}  // namespace zero

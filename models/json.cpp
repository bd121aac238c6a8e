#include "models/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/system_files.h"
#include "base/text.h"
#include "zero/error.h"

namespace models {
namespace {

constexpr int kDeepest = 64;
constexpr std::int64_t kLargestFile = std::int64_t{64} << 20;

// Reads a text and says in `reached` how far it has come.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  Cursor operator++(int) {
    const Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Of the character at `at`, both from 1.
std::string place(std::string_view text, std::size_t at) {
  const std::string_view before = text.substr(0, at);
  const std::size_t begin = before.rfind('\n') + 1;  // npos + 1 is 0
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; };
  return "line " + std::to_string(std::ranges::count(before, '\n') + 1) + ", column " +
         std::to_string(std::ranges::count_if(before.substr(begin), begins) + 1);
}

// Of "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing value - unexpected
// '}'; expected ']'", what comes behind the dash, without the text that is quoted there.
std::string fault_of(const nlohmann::json::exception& error) {
  std::string what = error.what();
  for (const std::string_view before : {"] ", "while parsing ", " - "})
    if (const auto at = what.find(before); at != std::string::npos) what.erase(0, at + before.size());
  return zero::shown(what.substr(0, what.find("; last read")));
}

// One text, and what it may not be beyond the grammar.
class Reader {
 public:
  Reader(const std::string& text, const std::string& source) : text_(text), source_(zero::shown(source)) {}

  Json read() try {
    const char* const begin = text_.data();
    reached_ = begin;
    const auto watch = [this](int depth, Json::parse_event_t event, const Json& value) {
      heard(depth, event, value);
      return true;
    };
    Json json = Json::parse(Cursor(begin, &reached_), Cursor(begin + text_.size(), &reached_), watch);
    // The parser takes a zero for the end, whatever comes behind it.
    if (const auto zero = text_.find('\0'); zero != std::string::npos) fail(" is not a JSON object: a zero byte", zero);
    if (!json.is_object()) throw zero::ConfigError(source_ + " is not a JSON object", "correct its syntax");
    return json;
  } catch (const Json::parse_error& error) {
    fail(" is not a JSON object: " + fault_of(error), error.byte == 0 ? 0 : error.byte - 1);
  } catch (const Json::exception& error) {
    fail(" is not a JSON object: " + fault_of(error), read_so_far());
  }

 private:
  void heard(int depth, Json::parse_event_t event, const Json& value) {
    const bool object = event == Json::parse_event_t::object_start;
    if ((object || event == Json::parse_event_t::array_start) && depth >= kDeepest)
      fail(" is nested deeper than " + std::to_string(kDeepest) + " levels", read_so_far());
    if (object) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_.pop_back();
    if (event != Json::parse_event_t::key) return;
    const auto key = value.get<std::string>();
    if (!keys_.back().insert(key).second) fail(": " + shown_key(key) + " is given twice", read_so_far());
  }

  // The last character that was read.
  std::size_t read_so_far() const {
    const auto count = static_cast<std::size_t>(reached_ - text_.data());
    return count == 0 ? 0 : count - 1;
  }

  [[noreturn]] void fail(const std::string& what, std::size_t at) const {
    throw zero::ConfigError(source_ + what + ", " + place(text_, at), "correct its syntax");
  }

  const std::string& text_;
  std::string source_;
  const char* reached_ = nullptr;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

[[noreturn]] void cannot_read(const std::string& path, const std::string& why, const std::string& hint) {
  throw zero::ConfigError("cannot read " + zero::in_quotes(path) + ": " + why, hint);
}

// Waits for no pipe's other end, and reads no device.
std::string text_of(const std::string& path, const std::string& hint) {
  const zero::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) cannot_read(path, std::strerror(errno), hint);
  if (const char* const other = zero::other_than_file(status.st_mode))
    cannot_read(path, std::string("it is ") + other + ", not a file", hint);
  std::string text;
  char buffer[1 << 16];
  for (ssize_t got = 1; got != 0;) {
    got = ::read(file.get(), buffer, sizeof buffer);
    if (got < 0 && errno != EINTR) cannot_read(path, std::strerror(errno), hint);
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    if (std::ssize(text) > kLargestFile) cannot_read(path, "it is larger than 64 MiB", hint);
  }
  return text;
}

}  // namespace

Json json_object(const std::string& text, const std::string& source) {
  return Reader(text, source).read();
}

Json json_file(const std::string& path, const std::string& hint) {
  return json_object(text_of(path, hint), path);
}

std::string shown(const Json& value) {
  return zero::shown(value.dump());
}

std::string shown_key(const std::string& key) {
  return zero::in_quotes(key, '"');
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
  // Integers of more than 64 bits are read as reals.
  const bool huge = value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63;
  const bool low = huge ? value.get<double>() < 0
                        : integer_within(value, std::numeric_limits<std::int64_t>::min(), most).has_value();
  const std::string fault = !huge && !value.is_number_integer() ? "not an integer"
                            : low                               ? "below " + std::to_string(least)
                                                                : "too large: at most " + std::to_string(most);
  throw zero::ConfigError(zero::shown(source) + ": " + shown_key(key) + " is " + shown(value) + ", " + fault,
                          "correct it");
}

std::optional<std::int64_t> product(std::initializer_list<std::int64_t> counts) {
  std::int64_t result = 1;
  for (const std::int64_t count : counts)
    if (__builtin_mul_overflow(result, count, &result)) return std::nullopt;
  return result;
}

}  // namespace models

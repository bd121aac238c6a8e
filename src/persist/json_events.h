// JSON of any length, taken piece by piece as it is read: no tree is built, and nothing calls itself. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "zero/error.h"

namespace zero {

// Who derives from it takes what it awaits, and is told of everything else as other().
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  // `source` is whose text it is, for errors.
  explicit JsonEvents(std::string source) : source_(std::move(source)) {}

  // Throws CheckpointError.
  void read(std::string_view text);

 protected:
  virtual void take_key(std::string& key) = 0;
  virtual void take_text(std::string&) { other("a string"); }
  virtual void take_natural(std::uint64_t) { other("a number"); }
  virtual void open_object() { other("an object"); }
  virtual void open_array() { other("a list"); }
  virtual void close() {}  // either
  // What it is, in words.
  virtual void other(const char* what) = 0;

  [[noreturn]] void fail(const std::string& fault) const { throw CheckpointError(source_ + ": " + fault); }

 private:
  [[noreturn]] void fail_at(std::size_t byte) const { fail("is not JSON, at byte " + std::to_string(byte)); }

  bool null() final { return other("null"), true; }
  bool boolean(bool) final { return other("a truth value"), true; }
  bool number_integer(number_integer_t) final { return other("a negative number"), true; }
  bool number_unsigned(number_unsigned_t number) final { return take_natural(number), true; }
  bool number_float(number_float_t, const string_t&) final { return other("no integer of 64 bits"), true; }
  bool string(string_t& text) final { return take_text(text), true; }
  bool binary(binary_t&) final { return other("bytes"), true; }
  bool key(string_t& key) final { return take_key(key), true; }
  bool start_object(std::size_t) final { return open_object(), true; }
  bool end_object() final { return close(), true; }
  bool start_array(std::size_t) final { return open_array(), true; }
  bool end_array() final { return close(), true; }
  bool parse_error(std::size_t read, const std::string&, const nlohmann::json::exception&) final {
    fail_at(read == 0 ? 0 : read - 1);
  }

  std::string source_;
};

}  // namespace zero

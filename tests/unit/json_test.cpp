// What all readers of JSON have in common: depth, range, and errors that name the file.
#include "models/json.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "models/llama_config.h"
#include "planner/deepspeed.h"
#include "planner/plan_file.h"
#include "planner/profile.h"
#include "unit/refused.h"

namespace json_test {

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

std::string objects(int depth) {
  return repeated(R"({"plan":)", depth) + "1" + repeated("}", depth);
}
std::string arrays(int depth) {
  return R"({"plan":)" + repeated("[", depth) + repeated("]", depth) + "}";
}

using planner::error_of;

struct Reader {
  const char* name;
  std::function<void(const std::string& path)> read;
};

const Reader kReaders[] = {{"a plan", [](const std::string& path) { planner::read_plan_file(path); }},
                           {"DeepSpeed's", [](const std::string& path) { planner::read_deepspeed(path, 4); }},
                           {"a profile", [](const std::string& path) { planner::profile_named(path); }},
                           {"a model", [](const std::string& path) { models::llama_from_file(path); }}};

class JsonFile : public testing::Test {
 protected:
  ~JsonFile() override { std::filesystem::remove(path_); }

  const std::string& with(const std::string& text) const {
    std::ofstream(path_) << text;
    return path_;
  }

  std::string path_ =
      (std::filesystem::path(testing::TempDir()) / ("zero-json-" + std::to_string(::getpid()))).string();
};

TEST_F(JsonFile, WhatIsNestedTooDeeplyIsAnErrorOfEveryReader) {
  for (const Reader& reader : kReaders)
    for (const std::string& text : {objects(20'000), arrays(100'000), objects(65), arrays(64), objects(100'000) + "x",
                                    repeated("[", 1'000'000), repeated(R"({"a":[)", 500'000)}) {
      const std::string error = error_of([&] { reader.read(with(text)); });
      EXPECT_NE(error.find(path_ + " is nested deeper than 64 levels"), std::string::npos) << reader.name << error;
    }
}

TEST_F(JsonFile, OtherwiseDepthIsNoError) {
  EXPECT_NO_THROW(models::json_file(with(objects(64)), ""));
  EXPECT_NO_THROW(models::json_file(with(arrays(63)), ""));
  const std::string brackets = R"({"plan": ")" + repeated("[{", 500) + "\"}";
  EXPECT_NO_THROW(models::json_file(with(brackets), "")) << "not in a string";
  EXPECT_NO_THROW(models::json_file(with(R"({"plan": [)" + repeated("[[]],", 1000) + "[]]}"), ""))
      << "not side by side";
  for (const Reader& reader : kReaders)
    EXPECT_EQ(error_of([&] { reader.read(with(objects(60))); }).find("nested"), std::string::npos) << reader.name;
}

TEST_F(JsonFile, WhatIsNoObjectIsAnErrorOfEveryReader) {
  for (const Reader& reader : kReaders) {
    for (const char* text : {"", "[1]", "{", "{} {}", "null", "{\"a\": 1e999}", "{\"a\": \"\xff\"}"}) {
      const std::string error = error_of([&] { reader.read(with(text)); });
      EXPECT_NE(error.find(path_ + " is not a JSON object"), std::string::npos) << reader.name << text << error;
    }
    for (const char* path : {"/", "/nonexistent/file.json"})
      EXPECT_NE(error_of([&] { reader.read(path); }).find("'" + std::string(path) + "'"), std::string::npos) << path;
  }
}

TEST_F(JsonFile, FaultsHaveALineAndAColumn) {
  const auto fault = [&](const char* text) { return error_of([&] { models::json_object(text, "x.json"); }); };
  const auto expect = [&](const char* text, const std::string& says) {
    EXPECT_NE(fault(text).find(says), std::string::npos) << fault(text);
  };
  expect("{\"a\": 1,}", "x.json is not a JSON object: unexpected '}'; expected string literal, line 1, column 9");
  expect("{\n  \"a\": 1\n  \"b\": 2\n}", "line 3, column 5");
  expect("{\"größe\": tru}", "line 1, column 14");
  expect("{\"a\": 1", "unexpected end of input; expected '}', line 1, column 8");
  expect("{\"a\": 1e999}", "number overflow parsing '1e999', line 1, column 12");
  expect("", "line 1, column 1");
  for (const std::string_view text : {std::string_view("{}\0", 3), std::string_view("{}\0{", 4)})
    EXPECT_NE(error_of([&] { models::json_object(std::string(text), "x"); }).find("a zero byte, line 1, column 3"),
              std::string::npos);
  for (const char* text : {"{\"a\": 1,}", "{\"a\": \"\x01\"}", "{\"a\": 1e999}", "{\"a\": \"\xff\"}"})
    for (const char* inner : {"json.exception", "last read", "parse error", "\x01", "\xff"})
      EXPECT_EQ(fault(text).find(inner), std::string::npos) << fault(text);
}

TEST_F(JsonFile, AKeyThatIsGivenTwiceIsAnErrorOfEveryReader) {
  const char* const text = "{\"plan\": {\"a\": 1, \"b\": [{\"a\": 2}]},\n \"b\": 3,\n \"plan\": 4}";
  for (const Reader& reader : kReaders) {
    const std::string error = error_of([&] { reader.read(with(text)); });
    EXPECT_NE(error.find(path_ + ": \"plan\" is given twice, line 3"), std::string::npos) << reader.name << error;
  }
  EXPECT_NO_THROW(models::json_object(R"({"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]})", "x")) << "others' keys";
  EXPECT_NE(error_of([] { models::json_object(R"({"a": {"b": 1, "b": 1}})", "x"); }).find("\"b\" is given twice"),
            std::string::npos);
}

TEST_F(JsonFile, WhatIsNoFileIsNamed) {
  const std::string pipe = path_ + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::pair<std::string, const char*> others[] = {
      {pipe, "it is a pipe"}, {"/dev/zero", "it is a device"}, {"/", "it is a folder"}};
  for (const auto& other : others)
    for (const Reader& reader : kReaders)
      EXPECT_NE(error_of([&] { reader.read(other.first); }).find(other.second), std::string::npos)
          << reader.name << other.first;
  std::filesystem::remove(pipe);
  std::ofstream(path_).put(' ');
  std::filesystem::resize_file(path_, std::uintmax_t{1} << 27);
  EXPECT_NE(error_of([&] { models::json_file(path_, ""); }).find("larger than 64 MiB"), std::string::npos);
}

TEST_F(JsonFile, MessagesAreShortAndPrintable) {
  const std::string key(100'000, 'k'), value(100'000, 'v');
  for (const Reader& reader : kReaders) {
    const std::string error = error_of([&] { reader.read(with("{\"" + key + "\": \"" + value + "\"}")); });
    EXPECT_LT(error.size(), 2'000u) << reader.name;
    const std::string escapes = error_of([&] { reader.read(with(R"({"\u001b[2J": "\u001b"})")); });
    EXPECT_EQ(escapes.find('\x1b'), std::string::npos) << reader.name;
  }
}

TEST(JsonIntegers, AreTooLargeBeyond64Bits) {
  const auto fault = [](const char* text) {
    return error_of([&] { models::integer_of(models::Json::parse(text), 1, kMost, "x", "k"); });
  };
  for (const char* text : {"9223372036854775808", "18446744073709551615", "18446744073709551616", "1e30"})
    EXPECT_NE(fault(text).find("too large: at most 9223372036854775807"), std::string::npos) << fault(text);
  for (const char* text : {"0", "-9223372036854775809", "-1e30"})
    EXPECT_NE(fault(text).find("below 1"), std::string::npos) << fault(text);
  EXPECT_NE(fault("1.5").find("not an integer"), std::string::npos);
}

TEST(JsonIntegers, AreWithinTheirRange) {
  const auto within = [](const char* text, std::int64_t least, std::int64_t most) {
    return models::integer_within(models::Json::parse(text), least, most);
  };
  EXPECT_EQ(within("9223372036854775807", kLeast, kMost), kMost);
  EXPECT_EQ(within("-9223372036854775808", kLeast, kMost), kLeast);
  EXPECT_EQ(within("9223372036854775808", kLeast, kMost), std::nullopt);
  EXPECT_EQ(within("18446744073709551615", kLeast, kMost), std::nullopt);
  EXPECT_EQ(within("18446744073709551616", kLeast, kMost), std::nullopt);
  EXPECT_EQ(within("-9223372036854775809", kLeast, kMost), std::nullopt);
  EXPECT_EQ(within("7", 1, 7), 7);
  EXPECT_EQ(within("8", 1, 7), std::nullopt);
  EXPECT_EQ(within("0", 1, 7), std::nullopt);
  for (const char* text : {"1.0", "\"1\"", "true", "null", "[1]"}) EXPECT_EQ(within(text, 0, 7), std::nullopt) << text;
}

TEST(JsonIntegers, ProductsAreCounted) {
  EXPECT_EQ(models::product({}), 1);
  EXPECT_EQ(models::product({1 << 20, 1 << 20, 1 << 20}), std::int64_t{1} << 60);
  EXPECT_EQ(models::product({1 << 20, 1 << 20, 1 << 23}), std::nullopt);
  EXPECT_EQ(models::product({kMost, 1}), kMost);
  EXPECT_EQ(models::product({kMost, 2, 0}), std::nullopt);
}

}  // namespace json_test

// What all readers of JSON have in common: depth, range, and errors that name the file.
#include "models/json.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "models/llama_config.h"
#include "planner/deepspeed.h"
#include "planner/plan_file.h"
#include "planner/profile.h"
#include "zero/error.h"

namespace {

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

std::string error_of(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const zero::ConfigError& error) {
    return error.what();
  }
}

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

}  // namespace

// The header of safetensors files, as the format's specification has it, and as others write and break it.
#include "persist/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "zero/error.h"

namespace zero::test::safetensors_test {

using namespace std::string_literals;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
// The eight bytes of a header's length.
std::string length_of(std::uint64_t header) {
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

std::string file_of(const std::string& header, std::int64_t data_bytes = 0) {
  return length_of(header.size()) + header + std::string(static_cast<std::size_t>(data_bytes), 'd');
}

// From a buffer that has no byte more, so that the address sanitizer sees what is read behind it.
SafetensorsHeader parse(const std::string& file) {
  const std::vector<char> exact(file.begin(), file.end());
  return read_safetensors_header(exact, std::ssize(exact), "x.safetensors");
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const CheckpointError& error) {
    return error.what();
  }
}

void expect_fault(const std::string& file, const std::string& says) {
  const std::string error = error_of([&] { parse(file); });
  EXPECT_NE(error.find("x.safetensors"), std::string::npos) << error;
  EXPECT_NE(error.find(says), std::string::npos) << error << "\n  instead of " << says;
}

// One tensor's member of a header.
std::string member(const std::string& name, const std::string& type, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + type + R"(","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}";
}
std::string bytes_member(const std::string& name, std::int64_t begin, std::int64_t end) {
  return member(name, "U8", std::to_string(end - begin), std::to_string(begin) + "," + std::to_string(end));
}

// What must hold of every header that was read without an error.
void expect_consistent(const SafetensorsHeader& header, std::int64_t file_bytes) {
  std::int64_t at = 0;
  std::vector<std::string> names;
  for (const TensorEntry& tensor : header.tensors) {
    ASSERT_EQ(tensor.begin, at);
    ASSERT_EQ(tensor.bytes(), bytes_of(tensor.type, tensor.shape));
    at = tensor.end;
    names.push_back(tensor.name);
  }
  ASSERT_EQ(header.data_begin + at, file_bytes);
  ASSERT_EQ(header.data_begin + header.data_bytes(), file_bytes);
  std::ranges::sort(names);
  ASSERT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(TensorTypes, HaveTheNamesAndSizesOfTheFormat) {
  const std::pair<TensorType, std::pair<const char*, int>> expected[] = {{TensorType::boolean, {"BOOL", 8}},
                                                                         {TensorType::f4, {"F4", 4}},
                                                                         {TensorType::f6_e2m3, {"F6_E2M3", 6}},
                                                                         {TensorType::f6_e3m2, {"F6_E3M2", 6}},
                                                                         {TensorType::u8, {"U8", 8}},
                                                                         {TensorType::i8, {"I8", 8}},
                                                                         {TensorType::f8_e5m2, {"F8_E5M2", 8}},
                                                                         {TensorType::f8_e4m3, {"F8_E4M3", 8}},
                                                                         {TensorType::f8_e8m0, {"F8_E8M0", 8}},
                                                                         {TensorType::f8_e4m3fnuz, {"F8_E4M3FNUZ", 8}},
                                                                         {TensorType::f8_e5m2fnuz, {"F8_E5M2FNUZ", 8}},
                                                                         {TensorType::i16, {"I16", 16}},
                                                                         {TensorType::u16, {"U16", 16}},
                                                                         {TensorType::f16, {"F16", 16}},
                                                                         {TensorType::bf16, {"BF16", 16}},
                                                                         {TensorType::i32, {"I32", 32}},
                                                                         {TensorType::u32, {"U32", 32}},
                                                                         {TensorType::f32, {"F32", 32}},
                                                                         {TensorType::c64, {"C64", 64}},
                                                                         {TensorType::f64, {"F64", 64}},
                                                                         {TensorType::i64, {"I64", 64}},
                                                                         {TensorType::u64, {"U64", 64}}};
  EXPECT_EQ(std::size(expected), kTensorTypes);
  for (const auto& [type, words] : expected) {
    EXPECT_EQ(name(type), words.first);
    EXPECT_EQ(bits_of(type), words.second);
    EXPECT_EQ(tensor_type_named(words.first), type);
  }
  for (const char* other : {"", "F", "f32", "F32 ", "I4", "F128"}) EXPECT_EQ(tensor_type_named(other), std::nullopt);
}

TEST(TensorTypes, AShapeHasBytesOrNone) {
  const auto bytes = [](TensorType type, std::vector<std::int64_t> shape) { return bytes_of(type, shape); };
  EXPECT_EQ(bytes(TensorType::f32, {}), 4);
  EXPECT_EQ(bytes(TensorType::f32, {2, 3}), 24);
  EXPECT_EQ(bytes(TensorType::f32, {5, 0, 7}), 0);
  EXPECT_EQ(bytes(TensorType::f32, {0, kMost, kMost}), 0);
  EXPECT_EQ(bytes(TensorType::f4, {2}), 1);
  EXPECT_EQ(bytes(TensorType::f6_e3m2, {4}), 3);
  EXPECT_EQ(bytes(TensorType::u8, {(std::int64_t{1} << 60) - 1}), (std::int64_t{1} << 60) - 1);
  for (const TensorType type : {TensorType::f4, TensorType::f6_e2m3}) EXPECT_EQ(bytes(type, {3}), std::nullopt);
  EXPECT_EQ(bytes(TensorType::u8, {std::int64_t{1} << 60}), std::nullopt);
  EXPECT_EQ(bytes(TensorType::f64, {kMost}), std::nullopt);
  EXPECT_EQ(bytes(TensorType::u8, {std::int64_t{1} << 32, std::int64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(bytes(TensorType::u8, {-2, -2}), std::nullopt);
}

// Written by hand from the specification.
const std::string kGolden =
    "\x90\0\0\0\0\0\0\0"
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}}    )"
    "\0\0\x80\x3f\0\0\0\xc0\x01\x02\x03"s;

TEST(SafetensorsHeaders, AreReadAsTheSpecificationHasThem) {
  ASSERT_EQ(kGolden.size(), 8 + 0x90 + 11);
  const SafetensorsHeader expected{.tensors = {{"a", TensorType::f32, {1, 2}, 0, 8}, {"b", TensorType::u8, {3}, 8, 11}},
                                   .metadata = {{"format", "pt"}},
                                   .data_begin = 8 + 0x90};
  EXPECT_EQ(parse(kGolden), expected);
}

TEST(SafetensorsHeaders, AreWrittenAsTheSpecificationHasThem) {
  SafetensorsHeader header{.tensors = {{"a", TensorType::f32, {1, 2}}, {"b", TensorType::u8, {3}}},
                           .metadata = {{"format", "pt"}}};
  EXPECT_EQ(write_safetensors_header(header), kGolden.substr(0, kGolden.size() - 11));
  EXPECT_EQ(header, parse(kGolden));
}

TEST(SafetensorsHeaders, AreReadAsTheyWereWritten) {
  SafetensorsHeader header{.metadata = {{"format", "pt"}, {"größe", "3 \"µm\"\n\x01"}, {"", ""}}};
  for (std::size_t i = 0; i < kTensorTypes; ++i) {
    const auto type = static_cast<TensorType>(i);
    const std::string of = " of " + std::string(name(type));
    header.tensors.push_back({"matrix" + of, type, {4, 3, 2}});
    header.tensors.push_back({"nothing" + of, type, {7, 0}});
    header.tensors.push_back({"nothing else" + of, type, {0}});
    if (bits_of(type) >= 8) header.tensors.push_back({"scalar" + of, type, {}});
  }
  for (const char* name : {"", " ", "\"quoted\"\\", "größe/層.0.😀", "a\nb\x7f", "\xef\xbf\xbf", "__metadata"})
    header.tensors.push_back({name, TensorType::bf16, {2}});
  header.tensors.push_back({"with\0zero"s, TensorType::bf16, {2}});

  for (const std::int64_t alignment : {8, 24, 512, 4096, 1 << 20}) {
    const std::string bytes = write_safetensors_header(header, alignment);
    EXPECT_EQ(std::ssize(bytes), header.data_begin);
    EXPECT_EQ(header.data_begin % alignment, 0);
    EXPECT_LT(header.data_begin, alignment + 10'000) << "no more than it takes";
    expect_consistent(header, header.data_begin + header.data_bytes());
    EXPECT_EQ(parse(bytes + std::string(static_cast<std::size_t>(header.data_bytes()), 'd')), header);
  }
}

TEST(SafetensorsHeaders, OfNothingAreFiles) {
  SafetensorsHeader nothing;
  EXPECT_EQ(write_safetensors_header(nothing), "\x08\0\0\0\0\0\0\0{}      "s);
  EXPECT_EQ(parse("\x02\0\0\0\0\0\0\0{}"s), (SafetensorsHeader{.data_begin = 10})) << "without padding";
  EXPECT_EQ(parse(file_of(R"({"__metadata__":{}})")).tensors.size(), 0u);
}

TEST(SafetensorsHeaders, TensorsAreInAnyOrderInTheText) {
  const std::string members = bytes_member("z", 3, 5) + "," + bytes_member("none ", 3, 3) + "," +
                              bytes_member("a", 5, 6) + "," + bytes_member("m ", 0, 3);
  const SafetensorsHeader header = parse(file_of("{" + members + "}", 6));
  std::string names;
  for (const TensorEntry& tensor : header.tensors) names += tensor.name;
  EXPECT_EQ(names, "m none za");
}

TEST(SafetensorsHeaders, KeysAreInAnyOrderAndBlanksAreAllowed) {
  const SafetensorsHeader header =
      parse(file_of("{ \"a\" : {\"data_offsets\":\t[0, 2] , \"shape\":[ ], \"dtype\" :\n\"F16\"} }  \r\n", 2));
  EXPECT_EQ(header.tensors, (std::vector<TensorEntry>{{"a", TensorType::f16, {}, 0, 2}}));
}

TEST(SafetensorsHeaders, AreFoundInTheBeginningOfTheirFile) {
  const std::int64_t begin = safetensors_data_begin(std::span(kGolden).first(8), std::ssize(kGolden), "x");
  EXPECT_EQ(begin, 8 + 0x90);
  const std::vector<char> exact(kGolden.begin(), kGolden.begin() + begin);
  EXPECT_EQ(read_safetensors_header(exact, std::ssize(kGolden), "x"), parse(kGolden));
  EXPECT_THROW(read_safetensors_header(std::span(exact).first(100), std::ssize(kGolden), "x"), StateError);
}

TEST(WrongSafetensorsHeaders, AreNotWritten) {
  const auto fault = [](SafetensorsHeader header, std::int64_t alignment = 8) {
    return error_of([&] { write_safetensors_header(header, alignment); });
  };
  const auto has = [](const std::string& error, const char* says) {
    EXPECT_NE(error.find(says), std::string::npos) << error;
  };
  has(fault({.tensors = {{"a", TensorType::u8, {1}}, {"b"}, {"a"}}}), "tensor \"a\" cannot be written twice");
  has(fault({.tensors = {{"__metadata__"}}}), "a tensor cannot be called __metadata__");
  has(fault({.tensors = {{"\xff"}}}), "a tensor's name cannot be written: \"\\xff\" is not UTF-8");
  has(fault({.metadata = {{"a", "\xed\xa0\x80"}}}), "metadata cannot be written");
  has(fault({.tensors = {{"a", TensorType::u8, {3, -1}}}}), "tensor \"a\" of U8 and shape [3, -1]");
  has(fault({.tensors = {{"a", TensorType::f4, {3}}}}), "takes no whole number of bytes");
  has(fault({.tensors = {{"a", TensorType::f64, {1, kMost}}}}), "takes no whole number of bytes");
  has(fault({}, 100'000'016), "a header of 100000008 bytes cannot be written: the format has 100000000 at most");
  has(fault({}, kMost - 7), "the format has 100000000 at most");
  for (const std::int64_t alignment : {-8, 0, 4, 12}) has(fault({}, alignment), "give a multiple of 8");
  std::vector<TensorEntry> huge;
  for (int i = 0; i < 9; ++i) huge.push_back({std::to_string(i), TensorType::u8, {(std::int64_t{1} << 60) - 1}});
  has(fault({.tensors = huge}), "takes no whole number of bytes");
}

TEST(HostileSafetensorsHeaders, WithALengthThatCannotBe) {
  for (const std::uint64_t length : {std::uint64_t{100'000'001}, std::uint64_t{1} << 32, std::uint64_t{1} << 63,
                                     ~std::uint64_t{0}, ~std::uint64_t{0} - 7})
    expect_fault(length_of(length) + "{}",
                 "a header of " + std::to_string(length) + " bytes; the format has 100000000");
  expect_fault(length_of(3) + "{}", "ends after 10 bytes, within its header of 11");
  expect_fault(length_of(0), "does not begin with '{'");
  expect_fault("", "ends after 0 bytes, within the length");
}

TEST(HostileSafetensorsHeaders, ThatAreNoJson) {
  expect_fault(file_of(" {}"), "does not begin with '{'");
  expect_fault(file_of("\xef\xbb\xbf{}"), "does not begin with '{'");
  expect_fault(file_of("[]"), "does not begin with '{'");
  for (const std::string& text : {"{"s,
                                  "{}}"s,
                                  "{},"s,
                                  "{} {}"s,
                                  "{}\0"s,
                                  "{}\0{\"a\":1}"s,
                                  "{\"a\":}"s,
                                  "{\"a\"}"s,
                                  "{,}"s,
                                  "{a:1}"s,
                                  "{'a':1}"s,
                                  "{}//"s,
                                  "{/**/}"s,
                                  "{\"\xff\":1}"s,
                                  "{\"\xc0\x80\":1}"s,
                                  "{\"\xed\xa0\x80\":1}"s,
                                  "{\"\xf4\x90\x80\x80\":1}"s,
                                  "{\"\xe2\x82\":1}"s,
                                  "{\"\\ud800\":1}"s,
                                  "{\"\\x\":1}"s,
                                  "{\"\n\":1}"s,
                                  "{}\xa0"s,
                                  "{\xff}"s})
    expect_fault(file_of(text), "x.safetensors: its header: is not JSON, at byte ");
}

TEST(HostileSafetensorsHeaders, WithMembersThatAreNoTensors) {
  const std::string rest = R"("shape":[1],"data_offsets":[0,1]})";
  const auto faults = [&](const std::string& text, const std::string& says) { expect_fault(file_of(text, 1), says); };
  for (const char* value : {"1", "-1", "1.5", "null", "true", "\"x\"", "[]", "1e400", "18446744073709551616"})
    expect_fault(file_of(R"({"a":)"s + value + "}"), value == "1e400"s ? "is not JSON" : "tensor \"a\" ");
  faults(R"({"a":{}})", "tensor \"a\" has no dtype");
  faults(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", "tensor \"a\" has no shape");
  faults(R"({"a":{"dtype":"U8","shape":[1]}})", "tensor \"a\" has no data_offsets");
  faults(R"({"a":{"dtype":"U8","dtype":"U8",)" + rest + "}", "has the key \"dtype\" twice");
  faults(R"({"a":{"dtype":"U8","shape":[1],)" + rest + "}", "has the key \"shape\" twice");
  faults(R"({"a":{"dtype":"U8","extra":1,)" + rest + "}", "has the key \"extra\", which the format does not know");
  faults(R"({"a":{"dtype":"U9",)" + rest + "}", "is of the type \"U9\", which the format does not know");
  faults(R"({"a":{"dtype":8,)" + rest + "}", "has a number where dtype should be a string");
  faults(R"({"a":{"dtype":["U8"],)" + rest + "}", "has a list where dtype should be a string");
  faults(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", "has a number where shape should be a list");
  faults(R"({"a":{"dtype":"U8","shape":{},"data_offsets":[0,1]}})", "has an object where shape should be a list");
  for (const char* size : {"[1]", "{}", "-1", "-0", "1.0", "1e0", "\"1\"", "null", "true", "18446744073709551616"})
    faults("{" + member("a", "U8", size, "0,1") + "}", "where shape should have natural numbers");
  faults("{" + member("a", "U8", "9223372036854775808", "0,1") + "}",
         "the number 9223372036854775808, which is too large");
  faults(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":0}})", "has a number where data_offsets should be a list");
  for (const char* offsets : {"", "0", "0,1,1", "0,1,2,3"})
    faults("{" + member("a", "U8", "1", offsets) + "}", "has data_offsets that are not two numbers");
  for (const char* offset : {"-1", "1.0", "\"1\"", "null", "[1]"})
    faults("{" + member("a", "U8", "1", "0,"s + offset) + "}", "where data_offsets should have natural numbers");
  faults("{" + bytes_member("a", 0, 1) + "," + bytes_member("b", 1, 1) + "," + bytes_member("a", 1, 1) + "}",
         "tensor \"a\" is there twice");
  faults("{" + bytes_member("a", 0, 1) + "," + bytes_member("\\u0061", 1, 1) + "}", "tensor \"a\" is there twice");
}

TEST(HostileSafetensorsHeaders, WithMetadataThatAreNoStrings) {
  for (const char* value : {"1", "null", "true", "[]", "{}", "-1", "1.5"})
    expect_fault(file_of(R"({"__metadata__":{"k":)"s + value + "}}"), "as \"k\" of __metadata__, not a string");
  for (const char* value : {"1", "null", "\"x\"", "[]"})
    expect_fault(file_of(R"({"__metadata__":)"s + value + "}"), "as __metadata__, not an object");
  expect_fault(file_of(R"({"__metadata__":{"k":"1","k":"2"}})"), "\"k\" of __metadata__ twice");
  expect_fault(file_of(R"({"__metadata__":{},"__metadata__":{}})"), "has __metadata__ twice");
}

TEST(HostileSafetensorsHeaders, WithBytesThatAreNotTheTensors) {
  const auto faults = [](const std::string& members, std::int64_t bytes, const std::string& says) {
    expect_fault(file_of("{" + members + "}", bytes), says);
  };
  const std::string first = bytes_member("a", 0, 4);
  faults(first + "," + bytes_member("b", 2, 6), 6, "tensor \"b\" has bytes [2, 6), some of which another tensor has");
  faults(first + "," + bytes_member("b", 0, 4), 4, "some of which another tensor has");
  faults(first + "," + bytes_member("b", 1, 1), 4, "some of which another tensor has");
  faults(first + "," + bytes_member("b", 5, 6), 6, "those from byte 4 on are nobody's");
  faults(bytes_member("a", 1, 4), 4, "those from byte 0 on are nobody's");
  faults(bytes_member("none", 1, 1), 1, "are nobody's");
  faults(first, 5, "has 5 bytes behind its header, of which tensors have 4");
  faults("", 1, "has 1 bytes behind its header, of which tensors have 0");
  faults(first, 3, "tensor \"a\" has bytes [0, 4) of 3");
  faults(member("a", "U8", "1", "1,0"), 1, "tensor \"a\" has bytes [1, 0) of 1");
  faults(member("a", "U8", "1", "0,9223372036854775807"), 1, "has bytes [0, 9223372036854775807) of 1");
  faults(member("a", "U8", "3", "0,4"), 4, "has bytes [0, 4), but its type and shape take 3");
  faults(member("a", "F32", "4", "0,4"), 4, "but its type and shape take 16");
  faults(member("a", "BOOL", "0", "0,4"), 4, "but its type and shape take 0");
  const std::string overflows = "takes no whole number of bytes below 2^60";
  faults(member("a", "F4", "3", "0,1"), 1, overflows);
  faults(member("a", "U8", "9223372036854775807", "0,1"), 1, overflows);
  faults(member("a", "F64", "2305843009213693952,8", "0,0"), 0, overflows);
  faults(member("a", "U8", "4294967296,4294967296", "0,0"), 0, overflows);
  faults(member("a", "F32", "4611686018427387905", "0,4"), 4, overflows);
}

TEST(HostileSafetensorsHeaders, ThatAreNestedOrLong) {
  const auto repeated = [](const std::string& text, int times) {
    std::string result;
    for (int i = 0; i < times; ++i) result += text;
    return result;
  };
  expect_fault(file_of(repeated(R"({"a":)", 100'000)), "tensor \"a\" has the key \"a\"");
  expect_fault(file_of(R"({"a":)" + repeated("[", 100'000)), "tensor \"a\" is a list, not an object");
  expect_fault(file_of(R"({"a":{"dtype":"U8","shape":)" + repeated("[", 100'000)), "natural numbers");
  expect_fault(file_of(R"({"__metadata__":{"a":)" + repeated(R"({"a":)", 100'000)), "not a string");
  const std::string error = error_of([&] { parse(file_of("{\"" + std::string(1'000'000, 'n') + "\":1}")); });
  EXPECT_LT(error.size(), 1000u) << "names are shortened";
}

TEST(HostileSafetensorsHeaders, ThatEndAnywhere) {
  for (std::size_t size = 0; size < kGolden.size(); ++size)
    EXPECT_NE(error_of([&] { parse(kGolden.substr(0, size)); }).find("x.safetensors"), std::string::npos) << size;
  expect_fault(kGolden + "x", "has 12 bytes behind its header, of which tensors have 11");
}

// Like what people get wrong, and like nothing that anybody would write.
std::string mutated(std::string file, std::mt19937& random) {
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  const std::string parts[] = {"{",       "}",
                               "[",       "]",
                               ",",       ":",
                               "\"",      "0",
                               "1",       "9223372036854775807",
                               "-1",      "F64",
                               "\\u0000", "__metadata__",
                               "\"a\"",   "\"shape\"",
                               "\xff",    "\0"s,
                               " ",       "e9",
                               "null"};
  for (std::size_t i = 0, changes = 1 + below(2); i < changes && !file.empty(); ++i) {
    const std::size_t at = below(std::min<std::size_t>(file.size(), below(2) ? 8 + 0x90 : below(2) ? 8 : file.size()));
    switch (below(6)) {
      case 0: file[at] = static_cast<char>(random()); break;
      case 1: file[at] = static_cast<char>(file[at] ^ 1 << below(8)); break;
      case 2: file.erase(at, 1 + below(4)); break;
      case 3: file.resize(at); break;
      case 4: file.insert(at, file, below(file.size()), below(40)); break;
      default: file.replace(at, below(3), parts[below(std::size(parts))]);
    }
  }
  return file;
}

TEST(HostileSafetensorsHeaders, OfRandomMutationsAreConsistentOrAnError) {
  std::mt19937 random(20);
  int good = 0, bad = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string file = mutated(kGolden, random);
    // Most mutations of the header change its length, which would hide what they did.
    if (i % 2 && file.size() > 8) file.replace(0, 8, length_of(std::min<std::size_t>(0x90, file.size() - 8)));
    try {
      ASSERT_NO_FATAL_FAILURE(expect_consistent(parse(file), std::ssize(file))) << i;
      ++good;
    } catch (const CheckpointError&) {
      ++bad;
    }
  }
  EXPECT_GT(good, 50);
  EXPECT_GT(bad, 3000);
}

}  // namespace zero::test::safetensors_test

// Numbers and names that people write, and what messages make of them.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/number.h"
#include "base/text.h"

namespace zero::test::words_test {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::uint64_t kLargest = std::numeric_limits<std::uint64_t>::max();

std::string fault(const char* text) {
  return read_number<std::int64_t>(text, 0, kMost).fault;
}
std::string real_fault(const char* text) {
  return read_number<double>(text, 0, 1e300).fault;
}

TEST(Numbers, AreReadToTheEndsOfTheirRange) {
  EXPECT_EQ(read_number<std::int64_t>("9223372036854775807", kLeast, kMost).value, kMost);
  EXPECT_EQ(read_number<std::int64_t>("-9223372036854775808", kLeast, kMost).value, kLeast);
  EXPECT_EQ(read_number<std::uint64_t>("18446744073709551615", 0, kLargest).value, kLargest);
  EXPECT_EQ(read_number<int>("0", 0, 7).value, 0);
  EXPECT_EQ(read_number<int>("7", 0, 7).value, 7);
  EXPECT_EQ(read_number<double>("2.5e-3", 0, 1).value, 2.5e-3);
  EXPECT_EQ(read_number<double>("0.1", 0, 1).value, 0.1);
  EXPECT_EQ(read_number<double>("-0.5", -1, 1).value, -0.5);
}

TEST(Numbers, NeverWrapOrSaturate) {
  EXPECT_EQ(fault("9223372036854775808"), "'9223372036854775808' is above 9223372036854775807");
  EXPECT_EQ(fault("18446744073709551616"), "'18446744073709551616' is above 9223372036854775807");
  EXPECT_EQ(fault("-1"), "'-1' is below 0");
  EXPECT_EQ(read_number<std::uint64_t>("-1", 0, kLargest).fault, "'-1' is below 0");
  EXPECT_EQ(read_number<std::uint64_t>("18446744073709551616", 0, kLargest).fault,
            "'18446744073709551616' is above 18446744073709551615");
  EXPECT_EQ(read_number<int>("4097", 1, 4096).fault, "'4097' is above 4096");
  EXPECT_EQ(read_number<int>("-99999999999", -5, 5).fault, "'-99999999999' is below -5");
}

TEST(Numbers, AreDecimalAndAllOfTheText) {
  for (const char* text :
       {"", " ", "-", "x", "1x", "1 ", " 1", "+1", "1.0", "1e3", "0x10", "--1", "1,000", "1_000", "٣"})
    EXPECT_EQ(fault(text), in_quotes(text) + " is not an integer");
  for (const char* text : {"010", "00", "-01"})
    EXPECT_NE(fault(text).find("begins with a zero"), std::string::npos) << text;
  for (const char* text : {"", " ", "x", "1x", "1 ", "+1", "0x10", "1,5", "1e", "."})
    EXPECT_EQ(real_fault(text), in_quotes(text) + " is not a number");
  EXPECT_NE(real_fault("010.5").find("begins with a zero"), std::string::npos);
}

TEST(Numbers, AreFinite) {
  for (const char* text : {"inf", "-inf", "nan", "infinity", "NaN"})
    EXPECT_EQ(real_fault(text), in_quotes(text) + " is not a finite number");
  for (const char* text : {"1e999", "1e-999"})
    EXPECT_EQ(real_fault(text), in_quotes(text) + " is beyond the numbers of 64 bits");
  EXPECT_EQ(real_fault("-1e-9"), "'-1e-9' is below 0");
  EXPECT_EQ(real_fault("1e301"), "'1e301' is above 1e+300");
}

TEST(Messages, ShowNothingThatControlsATerminal) {
  EXPECT_EQ(in_quotes("a\nb\tc\rd"), R"('a\nb\tc\rd')");
  EXPECT_EQ(in_quotes("\x1b[31m\x7f"), R"('\x1b[31m\x7f')");
  EXPECT_EQ(in_quotes(std::string("a\0b", 3)), R"('a\x00b')");
  EXPECT_EQ(in_quotes("\xc2\x9b"), R"('\xc2\x9b')") << "the same in one character";
  EXPECT_EQ(in_quotes("größe \xf0\x9f\x98\x80", '"'), "\"größe \xf0\x9f\x98\x80\"");
  EXPECT_EQ(in_quotes("\xff\xc3"), R"('\xff\xc3')");
  EXPECT_EQ(escaped(escaped("\x1b")), R"(\x1b)");
}

TEST(Messages, LeaveOutTheMiddleOfWhatIsLong) {
  const std::string most(120, 'a');
  EXPECT_EQ(shown(most), most);
  EXPECT_EQ(shown(std::string(80, 'a') + "x" + std::string(40, 'b')),
            std::string(80, 'a') + "..." + std::string(40, 'b'));
  EXPECT_EQ(shown(std::string(1 << 20, 'a')).size(), 123u);
  std::string wide;
  for (int i = 0; i < 200; ++i) wide += "ö";
  EXPECT_EQ(shown(wide).size(), 243u) << "no character is cut in two";
}

TEST(Messages, SuggestWhatWasMeant) {
  const std::vector<std::string> known{"--steps", "--seed", "--seq", "--accumulate", "--resident-budget"};
  EXPECT_EQ(did_you_mean("--step", known), "; did you mean '--steps'?");
  EXPECT_EQ(did_you_mean("--setps", known), "; did you mean '--steps'?");
  EXPECT_EQ(did_you_mean("--acc", known), "; did you mean '--accumulate'?");
  EXPECT_EQ(did_you_mean("--resident_budget", known), "; did you mean '--resident-budget'?");
  EXPECT_EQ(did_you_mean("--frobnicate", known), "");
  EXPECT_EQ(did_you_mean("", known), "");
  EXPECT_EQ(did_you_mean(std::string(1 << 20, 'x'), known), "");
  EXPECT_EQ(did_you_mean("zer3", std::vector<std::string>{"ddp", "zero1", "zero2", "zero3"}),
            "; did you mean 'zero3'?");
  EXPECT_EQ(did_you_mean("x", {}), "");
}

TEST(Messages, CountLettersApart) {
  EXPECT_EQ(letters_apart("", "abc"), 3u);
  EXPECT_EQ(letters_apart("abc", "abc"), 0u);
  EXPECT_EQ(letters_apart("abcd", "acbd"), 1u);
  EXPECT_EQ(letters_apart("kitten", "sitting"), 3u);
}

}  // namespace zero::test::words_test

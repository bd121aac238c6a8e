// Event files, byte by byte. That TensorBoard reads them is tested in tests/interop.
#include "cli/report/tensorboard.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "zero/error.h"

namespace cli::tensorboard_test {

namespace fs = std::filesystem;
using namespace std::string_literals;

class EventFiles : public testing::Test {
 protected:
  EventFiles() : folder_((fs::temp_directory_path() / "zero.events.XXXXXX").string()) {
    if (!::mkdtemp(folder_.data())) throw std::runtime_error("no temporary folder");
  }
  ~EventFiles() override { fs::remove_all(folder_); }

  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string folder_;
};

std::string counting(int count, int first, int step) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(first + i * step);
  return bytes;
}

TEST(Crc32c, IsThatOfTheRfc) {  // RFC 3720, B.4, and the check value of the polynomial
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(counting(32, 0, 1)), 0x46dd794eU);
  EXPECT_EQ(crc32c(counting(32, 31, -1)), 0x113fdb5cU);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Record, HasLengthDataAndMaskedChecksums) {
  const std::string bytes = record("123456789");
  ASSERT_EQ(bytes.size(), 8U + 4U + 9U + 4U);
  EXPECT_EQ(bytes.substr(0, 8), "\x09\0\0\0\0\0\0\0"s);
  EXPECT_EQ(bytes.substr(12, 9), "123456789");
  // 0xe3069283 turned right by 15 bits is 0x2507c60d; with 0xa282ead8 it is 0xc78ab0e5.
  EXPECT_EQ(bytes.substr(21), "\xe5\xb0\x8a\xc7");
}

TEST(Event, OfAScalarIsAProtocolBuffer) {
  const std::string expected =
      "\x09\0\0\0\0\0\0\xf8\x3f"s  // 1: wall time, 1.5
      "\x10\xac\x02"s              // 2: step, 300
      "\x2a\x0d"s                  // 5: summary, 13 bytes
      "\x0a\x0b"s                  // 1: value, 11 bytes
      "\x0a\x04loss"s              // 1: tag
      "\x15\0\0\0\xc0"s;           // 2: simple value, -2
  EXPECT_EQ(scalar_event("loss", 300, -2, 1.5), expected);
}

TEST(Event, OfTheVersionNamesIt) {
  EXPECT_EQ(version_event(1.5), "\x09\0\0\0\0\0\0\xf8\x3f\x1a\x0d"s + "brain.Event:2");
}

TEST_F(EventFiles, BeginWithTheVersionAndAreCompleteAfterEachScalar) {
  EventFile file(folder_ + "/a/b", 1700000000.25);
  std::string expected = record(version_event(1700000000.25));
  EXPECT_EQ(content(file.path()), expected);
  for (int step = 1; step <= 3; ++step) {
    file.scalar("loss", step, 1.0 / step, 1700000001.0);
    expected += record(scalar_event("loss", step, 1.0 / step, 1700000001.0));
    EXPECT_EQ(content(file.path()), expected);
  }
}

TEST_F(EventFiles, AreNamedByTimeHostAndProcess) {
  const EventFile file(folder_, 1700000000.25);
  const std::string name = fs::path(file.path()).filename();
  EXPECT_EQ(name.rfind("events.out.tfevents.1700000000.", 0), 0U) << name;
  const std::string pid = "." + std::to_string(::getpid());
  EXPECT_EQ(name.substr(name.size() - pid.size()), pid);
}

TEST_F(EventFiles, OfOneSecondDoNotOverwriteEachOther) {
  EventFile first(folder_, 1700000000), second(folder_, 1700000000);
  EXPECT_NE(first.path(), second.path());
  second.scalar("loss", 1, 1, 0);
  EXPECT_EQ(content(first.path()), record(version_event(1700000000)));
}

TEST_F(EventFiles, NameThePathThatCannotBeWritten) {
  std::ofstream(folder_ + "/file") << "no folder";
  try {
    const EventFile file(folder_ + "/file/events", 0);
    FAIL() << "written to " << file.path();
  } catch (const zero::Error& error) {
    EXPECT_NE(std::string(error.what()).find(folder_ + "/file/events"), std::string::npos) << error.what();
  }
}

}  // namespace cli::tensorboard_test

#include "cli/report/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/text.h"
#include "zero/error.h"

namespace cli {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0x82f63b78U : 0U);
    table[byte] = rest;
  }
  return table;
}

constexpr std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8U;
}

// Least significant byte first.
template <typename Unsigned>
std::string fixed_bytes(Unsigned value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> 8 * i & 0xff);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

// How a protocol buffer writes a field's value.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, counted = 2, fixed32 = 5 };

std::string field(unsigned number, Wire wire, const std::string& value) {
  return varint(number << 3 | static_cast<unsigned>(wire)) + value;
}
std::string sized(unsigned number, std::string_view bytes) {
  return field(number, Wire::counted, varint(bytes.size()).append(bytes));
}

std::string wall_time_field(double wall_time) {
  return field(1, Wire::fixed64, fixed_bytes(std::bit_cast<std::uint64_t>(wall_time)));
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  char name[256] = "localhost";
  if (::gethostname(name, sizeof name - 1) != 0) return "localhost";
  return name;
}

[[noreturn]] void cannot_write(const std::string& path, int error) {
  throw zero::Error("cannot write " + zero::in_quotes(path) + ": " + std::strerror(error));
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) cannot_write(folder, error.value());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> table = crc_table();
  std::uint32_t crc = ~0U;
  for (const char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

std::string record(std::string_view data) {
  const std::string length = fixed_bytes<std::uint64_t>(data.size());
  return (length + fixed_bytes(masked(crc32c(length)))).append(data) + fixed_bytes(masked(crc32c(data)));
}

std::string version_event(double wall_time) {
  return wall_time_field(wall_time) + sized(3, "brain.Event:2");
}

std::string scalar_event(std::string_view tag, std::int64_t step, double value, double wall_time) {
  const auto single = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  const std::string scalar = sized(1, tag) + field(2, Wire::fixed32, fixed_bytes(single));
  return wall_time_field(wall_time) + field(2, Wire::varint, varint(static_cast<std::uint64_t>(step))) +
         sized(5, sized(1, scalar));
}

EventFile::EventFile(const std::string& folder) : EventFile(folder, now()) {}

EventFile::EventFile(const std::string& folder, double wall_time) {
  make_folder(folder);
  const std::string name = folder + "/events.out.tfevents." + std::to_string(static_cast<std::int64_t>(wall_time)) +
                           "." + host_name() + "." + std::to_string(::getpid());
  for (int again = 0; !file_; ++again) {  // several of one second
    path_ = again ? name + "." + std::to_string(again) : name;
    file_ = zero::Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (!file_ && errno != EEXIST) cannot_write(path_, errno);
  }
  write(version_event(wall_time));
}

void EventFile::scalar(std::string_view tag, std::int64_t step, double value, double wall_time) {
  write(scalar_event(tag, step, value, wall_time));
}

void EventFile::write(std::string_view event) {
  const std::string bytes = record(event);
  for (std::string_view rest = bytes; !rest.empty();) {
    const ssize_t written = ::write(file_.get(), rest.data(), rest.size());
    if (written < 0 && errno != EINTR) cannot_write(path_, errno);
    if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace cli

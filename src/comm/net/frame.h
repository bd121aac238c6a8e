// What goes over a stream between two ranks: frames, each a header of 40 bytes and `length` bytes behind it.
//
//   whole   a message of at most kLongestWhole bytes, which its receiver may not have asked for yet
//   ready   the receiver of a longer one has memory for it: `at` is its length; nothing follows
//   part    of one that was asked for, from byte `at` on; parts of other messages may come between its own
//   failed  nobody is to wait for this rank in this call of the channel, or in a later one; why, in words, follows
//   waits   for rank `at` of the world this rank waits, and has for long; -1: for nobody any more; nothing follows
//   left    this rank has come to its end, and will say nothing more
//
// Numbers are of the sender's byte order, which is the receiver's (handshake.h).
#pragma once

#include <compare>
#include <cstdint>

namespace zero {

// A message between two ranks: of which group, of which of its calls, in which round of that.
struct MessageKey {
  std::uint64_t channel = 0;
  std::uint32_t call = 0;
  std::uint32_t round = 0;
  auto operator<=>(const MessageKey&) const = default;  // NOLINT(modernize-use-nullptr): for clang-tidy before 15
};

enum class FrameKind : std::uint32_t { whole = 1, ready, part, failed, left, waits };

struct FrameHeader {
  static constexpr std::uint32_t kMagic = 0x6f72657a;  // "zero"

  std::uint32_t magic = kMagic;
  FrameKind kind = FrameKind::left;
  MessageKey key = {};
  std::int64_t at = 0;
  std::uint32_t length = 0;
  std::uint32_t mark = 0;  // of the call: where ranks call different ones, they differ
};
static_assert(sizeof(FrameHeader) == 40);

inline constexpr std::int64_t kLongestWhole = 8 * 1024;
inline constexpr std::int64_t kLongestPart = 128 * 1024;
inline constexpr std::int64_t kLongestReason = 4 * 1024;

}  // namespace zero

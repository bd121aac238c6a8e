// What the writers and the readers of a checkpoint's JSON files have in common. No torch.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "persist/checksum.h"
#include "zero/error.h"

namespace zero {

inline constexpr std::string_view kManifestSchema = "zero.checkpoint/2";
// Before state said which optimizer's it is: moments have numbers for names.
inline constexpr std::string_view kFirstManifestSchema = "zero.checkpoint/1";

// "0x7ff0000000000000": of a number that is not finite.
inline std::string bits_text(double value) {
  char text[19];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(std::bit_cast<std::uint64_t>(value)));
  return text;
}

// What ends such a text: the checksum of all that is before.
inline std::string checksum_member(std::string_view before) {
  return ",\n \"checksum\": \"" + text_of(checksum_of(before)) + "\"\n}\n";
}

// Throws CheckpointError unless that is how it ends. The last member's text is known but for its digits.
inline void require_checksum(const std::string& text, const std::string& source) {
  const std::size_t length = checksum_member({}).size();
  if (text.size() < length)
    throw CheckpointError(source + ": is cut off: it has " + std::to_string(text.size()) + " bytes");
  const std::string_view whole = text, before = whole.substr(0, text.size() - length);
  if (whole.substr(before.size()) != checksum_member(before))
    throw CheckpointError(source + ": is damaged or cut off: its checksum is not that of its " +
                          std::to_string(before.size()) + " bytes");
}

}  // namespace zero

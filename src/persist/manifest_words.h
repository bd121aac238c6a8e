// What the writer and the reader of a manifest have in common. No torch.
#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "persist/checksum.h"

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

// What ends a manifest: the checksum of all that is before.
inline std::string checksum_member(std::string_view before) {
  return ",\n \"checksum\": \"" + text_of(checksum_of(before)) + "\"\n}\n";
}

}  // namespace zero

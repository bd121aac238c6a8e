// FNV-1a, 64 bits: the same on every rank and machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace zero {

constexpr std::uint64_t fnv1a(std::string_view bytes) {
  std::uint64_t value = 14695981039346656037u;
  for (const char c : bytes) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return value;
}

}  // namespace zero

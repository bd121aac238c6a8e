// Random numbers of the system's, which nobody foresees: secrets, and names that nobody else has. No torch.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace zero {

// Throws CommError.
std::array<std::uint8_t, 16> random_bytes();

// `prefix` and 32 random hexadecimal digits.
std::string random_name(std::string prefix);

}  // namespace zero

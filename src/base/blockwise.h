// Numbers in 8 bits, block by block: each block has a scale, the largest magnitude in it, and each number a
// code into the dynamic map, which spends its codes on seven decades and its precision on large numbers
// (Dettmers et al., 2022: 8-bit optimizers via block-wise quantization). Rounded to the nearest value of the
// map, except that of numbers under a root, Signs::positive, only zero becomes zero: a step is divided by their root.
// Zeros and a positive extreme are exact; the map ends at -0.993. The same bits on every instruction set. No torch.
#pragma once

#include <array>
#include <cstdint>

namespace zero {

inline constexpr std::int64_t kStateBlock = 256;  // elements of a block, at most

enum class Signs : std::uint8_t { both, positive };

// The value of each code, ascending, in [-1, 1] or [0, 1].
const std::array<float, 256>& dynamic_map(Signs signs);

// `count` numbers, at most a block. Code 0 with scale 0 is zero.
void dequantize(const std::uint8_t* codes, float scale, Signs signs, float* values, std::int64_t count);
// Returns the scale, which is finite: infinities become the largest number. Values must not be negative for
// Signs::positive.
float quantize(const float* values, Signs signs, std::uint8_t* codes, std::int64_t count);

}  // namespace zero

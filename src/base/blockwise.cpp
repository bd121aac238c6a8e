#include "base/blockwise.h"

#include <algorithm>
#include <numeric>

#include "base/targets.h"

namespace zero {
namespace {

using namespace codes;

const Pieces& pieces(Signs signs) {
  static const Pieces both(Signs::both), positive(Signs::positive);
  return signs == Signs::both ? both : positive;
}

ZERO_MULTIVERSION void decode_all(const std::uint8_t* codes, const Pieces p, float scale, float* values,
                                  std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) values[i] = decode(codes[i], p, scale);
}

ZERO_MULTIVERSION std::int32_t largest_magnitude(const float* values, std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude(values[i]));
  return largest;
}

ZERO_MULTIVERSION void encode_all(const float* values, const Pieces p, float inverse, std::uint8_t* codes,
                                  std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) codes[i] = encode(values[i], p, inverse);
}

std::array<float, 256> values(Signs signs) {
  std::array<std::uint8_t, 256> codes;
  std::iota(codes.begin(), codes.end(), std::uint8_t{0});
  std::array<float, 256> result;
  dequantize(codes.data(), 1, signs, result.data(), 256);
  return result;
}

}  // namespace

const std::array<float, 256>& dynamic_map(Signs signs) {
  static const std::array<float, 256> both = values(Signs::both), positive = values(Signs::positive);
  return signs == Signs::both ? both : positive;
}

void dequantize(const std::uint8_t* codes, float scale, Signs signs, float* values, std::int64_t count) {
  decode_all(codes, pieces(signs), scale, values, count);
}

float quantize(const float* values, Signs signs, std::uint8_t* codes, std::int64_t count) {
  const Scale scale = scale_of(largest_magnitude(values, count));
  encode_all(values, pieces(signs), scale.inverse, codes, count);
  return scale.value;
}

}  // namespace zero

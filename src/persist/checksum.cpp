#include "persist/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>

namespace zero {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

Checksum from(const XXH128_hash_t& hash) {
  return {hash.high64, hash.low64};
}

}  // namespace

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  restart();
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::restart() {
  XXH3_128bits_reset(&state_->xxh);
}

void Hasher::add(const void* bytes, std::int64_t count) {
  if (count > 0) XXH3_128bits_update(&state_->xxh, bytes, static_cast<std::size_t>(count));
}

Checksum Hasher::result() const {
  return from(XXH3_128bits_digest(&state_->xxh));
}

Checksum checksum_of(std::string_view bytes) {
  return from(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string text_of(const Checksum& checksum) {
  std::string text;
  for (const std::uint64_t half : {checksum.high, checksum.low})
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(half >> shift) & 15];
  return text;
}

std::optional<Checksum> checksum_named(std::string_view text) {
  if (text.size() != 32) return {};
  std::array<std::uint64_t, 2> halves{};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return {};
    halves[i / 16] = halves[i / 16] << 4 | digit;
  }
  return Checksum{halves[0], halves[1]};
}

}  // namespace zero

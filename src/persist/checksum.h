// XXH3, 128 bits: of bytes as they come. No torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace zero {

struct Checksum {
  std::uint64_t high = 0, low = 0;
  bool operator==(const Checksum&) const = default;
};
// 32 hexadecimal digits.
std::string text_of(const Checksum& checksum);
// Only of such a text, in lower case.
std::optional<Checksum> checksum_named(std::string_view text);

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void add(const void* bytes, std::int64_t count);
  Checksum result() const;  // of what was added
  void restart();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Checksum checksum_of(std::string_view bytes);

}  // namespace zero

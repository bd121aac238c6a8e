// Tokens of a file, or of all files of a folder end to end, memory-mapped. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace models {

enum class TokenFormat : std::uint8_t {
  automatic,  // by llm.c's header, or by name: *.bin and *.u16 hold 16 bit, *.u32 32 bit, all else is text
  text,       // one token a byte
  u16,        // unsigned, little-endian
  u32,
};

// A header of llm.c (magic 20240520, version 1: 16 bit; 20240801, version 7: 32 bit) is recognised and skipped, and
// decides the width, unless the file is to be read as text. Immutable; safe to read from several threads.
class TokenSource {
 public:
  // Files of a folder are taken recursively, ordered by the bytes of their relative paths, the same on
  // every machine; `extensions` (".h") keeps only those, empty keeps all. Throws zero::ConfigError for
  // a path that is missing, unreadable or empty, for a file whose size does not fit its format or whose header is of
  // another version, and for a folder whose files are not all of one format.
  static TokenSource open(const std::filesystem::path& path, TokenFormat format = TokenFormat::automatic,
                          const std::vector<std::string>& extensions = {});

  std::int64_t size() const { return size_; }
  std::int64_t files() const { return static_cast<std::int64_t>(parts_.size()); }
  const std::string& path() const { return path_; }
  bool text() const { return text_; }

  // Tokens [begin, begin + out.size()), which must exist.
  void read(std::int64_t begin, std::span<std::int64_t> out) const;

  // The file and place of a token, for messages: "a/b.txt, token 12".
  std::string where(std::int64_t token) const;

 private:
  struct Part {
    std::string name;
    std::shared_ptr<const unsigned char> bytes;  // of the first token
    int width = 1;
    std::int64_t begin = 0;  // within the source
    std::int64_t count = 0;
  };
  class Builder;

  TokenSource() = default;
  const Part* part_of(std::int64_t token) const;

  std::string path_;
  bool text_ = true;
  std::int64_t size_ = 0;
  std::vector<Part> parts_;
};

}  // namespace models

#include "models/tokens.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "base/system_files.h"
#include "base/text.h"
#include "zero/error.h"

namespace models {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kHeaderBytes = 1024;  // 256 integers: magic, version, number of tokens

struct Header {
  std::uint64_t magic;
  std::uint64_t version;
  TokenFormat format;
};
constexpr std::array<Header, 2> kHeaders{{{20240520, 1, TokenFormat::u16}, {20240801, 7, TokenFormat::u32}}};
constexpr std::uint64_t kEvaluations = 20240522;  // the magic of multiple-choice questions

[[noreturn]] void fail_to_read(const fs::path& path, int error) {
  throw zero::ConfigError(
      "cannot read the data " + zero::shown(path.string()) + ": " + std::generic_category().message(error),
      error == ENOMEM ? "too many files to map: join them or filter them by extension"
                      : "check the path and its permissions");
}

struct Mapping {
  std::shared_ptr<const unsigned char> bytes;
  std::int64_t size = 0;
};

// An empty file maps to nothing. No pipe is waited for.
Mapping map(const fs::path& path) {
  const zero::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail_to_read(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_to_read(path, errno);
  if (const char* const other = zero::other_than_file(status.st_mode))
    throw zero::ConfigError("the data " + zero::shown(path.string()) + " is " + other, "give a file or a folder");
  if (status.st_size == 0) return {};
  const auto mapped = zero::map_file(file.get(), status.st_size);
  if (!mapped) fail_to_read(path, errno);
  return {std::reinterpret_pointer_cast<const unsigned char>(mapped), status.st_size};
}

std::uint64_t little_endian(const unsigned char* bytes, int width) {
  std::uint64_t value = 0;
  for (int i = width; i-- > 0;) value = value << 8 | bytes[i];
  return value;
}

template <int Width>
void decode(const unsigned char* bytes, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::int64_t>(little_endian(bytes + i * Width, Width));
}

void decode(const unsigned char* bytes, int width, std::span<std::int64_t> out) {
  if (width == 1) return decode<1>(bytes, out);
  if (width == 2) return decode<2>(bytes, out);
  decode<4>(bytes, out);
}

int width_of(TokenFormat format) {
  return format == TokenFormat::u32 ? 4 : format == TokenFormat::u16 ? 2 : 1;
}

std::string described(TokenFormat format) {
  return format == TokenFormat::text ? "text" : std::to_string(8 * width_of(format)) + " bit tokens";
}

TokenFormat by_name(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".u32") return TokenFormat::u32;
  return extension == ".bin" || extension == ".u16" ? TokenFormat::u16 : TokenFormat::text;
}

// Relative paths, in the order of their bytes.
std::vector<std::string> files_below(const fs::path& folder, const std::vector<std::string>& extensions) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    const bool wanted = extensions.empty() || std::ranges::find(extensions, extension) != extensions.end();
    if (wanted && entry.is_regular_file()) names.push_back(entry.path().lexically_relative(folder).generic_string());
  }
  std::ranges::sort(names);
  return names;
}

std::string bytes_text(std::int64_t bytes) {
  return std::to_string(bytes) + " bytes";
}

}  // namespace

class TokenSource::Builder {
 public:
  Builder(const fs::path& path, TokenFormat format) : asked_(format) { source_.path_ = path.string(); }

  void add(const fs::path& path, std::string name) {
    const Mapping mapping = map(path);
    if (mapping.size == 0) return;
    const Header* const header = header_of(mapping, path);
    require_one_format(header ? header->format : asked_ == TokenFormat::automatic ? by_name(path) : asked_, path);
    const int width = width_of(*format_);
    Part part{std::move(name), mapping.bytes, width, source_.size_, mapping.size / width};
    if (header) {
      skip_header(mapping, part, path);
    } else if (mapping.size % width != 0) {
      fail(path, "has " + bytes_text(mapping.size) + ", which does not divide into tokens of " + bytes_text(width));
    }
    if (part.count == 0) return;
    source_.size_ += part.count;
    source_.parts_.push_back(std::move(part));
  }

  TokenSource finish() && {
    if (source_.size_ == 0) fail(source_.path_, "is empty");
    return std::move(source_);
  }

 private:
  [[noreturn]] static void fail(const fs::path& path, const std::string& what) {
    throw zero::ConfigError("the data " + zero::shown(path.string()) + " " + what,
                            "give text or 16 or 32 bit tokens, as a file or a folder of files of one format");
  }

  // Null for a file without one.
  const Header* header_of(const Mapping& mapping, const fs::path& path) const {
    if (asked_ == TokenFormat::text || mapping.size < 8) return nullptr;
    const std::uint64_t magic = little_endian(mapping.bytes.get(), 4);
    if (magic == kEvaluations) fail(path, "holds llm.c's questions for evaluation, not tokens to train on");
    const auto known = std::ranges::find(kHeaders, magic, &Header::magic);
    if (known == kHeaders.end()) return nullptr;
    const std::uint64_t version = little_endian(mapping.bytes.get() + 4, 4);
    if (version != known->version)
      fail(path, "has a header of llm.c of version " + std::to_string(version) + "; of " + described(known->format) +
                     " version " + std::to_string(known->version) + " is known");
    if (mapping.size < kHeaderBytes) fail(path, "ends within its header of llm.c, after " + bytes_text(mapping.size));
    return &*known;
  }

  void require_one_format(TokenFormat format, const fs::path& path) {
    if (!format_) {
      format_ = format;
      first_ = path.string();
      source_.text_ = format == TokenFormat::text;
    }
    if (format != *format_) fail(path, "is " + described(format) + ", and " + first_ + " is " + described(*format_));
  }

  static void skip_header(const Mapping& mapping, Part& part, const fs::path& path) {
    part.count = static_cast<std::int64_t>(little_endian(mapping.bytes.get() + 8, 4));
    part.bytes = {mapping.bytes, mapping.bytes.get() + kHeaderBytes};
    const std::int64_t expected = kHeaderBytes + part.count * part.width;
    if (mapping.size != expected)
      fail(path, "has " + bytes_text(mapping.size) + ", but its header announces " + bytes_text(expected));
  }

  TokenFormat asked_;
  std::optional<TokenFormat> format_;  // of the files so far
  std::string first_;                  // of them
  TokenSource source_;
};

TokenSource TokenSource::open(const fs::path& path, TokenFormat format,
                              const std::vector<std::string>& extensions) try {
  if (!fs::exists(path)) fail_to_read(path, ENOENT);
  Builder builder(path, format);
  if (!fs::is_directory(path)) {
    builder.add(path, path.filename().string());
  } else {
    for (std::string& name : files_below(path, extensions)) builder.add(path / name, name);
  }
  return std::move(builder).finish();
} catch (const fs::filesystem_error& error) {
  fail_to_read(path, error.code().value());
}

const TokenSource::Part* TokenSource::part_of(std::int64_t token) const {
  const auto after = std::ranges::upper_bound(parts_, token, {}, &Part::begin);
  return &*std::prev(after);
}

void TokenSource::read(std::int64_t begin, std::span<std::int64_t> out) const {
  for (const Part* part = part_of(begin); !out.empty(); ++part) {
    const std::int64_t offset = begin - part->begin;
    const auto count = std::min(out.size(), static_cast<std::size_t>(part->count - offset));
    decode(part->bytes.get() + offset * part->width, part->width, out.first(count));
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
  }
}

std::string TokenSource::where(std::int64_t token) const {
  const Part* part = part_of(token);
  return part->name + ", token " + std::to_string(token - part->begin);
}

}  // namespace models

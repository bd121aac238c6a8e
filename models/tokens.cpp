#include "models/tokens.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/file_kind.h"
#include "base/text.h"
#include "zero/error.h"

namespace models {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kHeaderBytes = 1024;  // 256 integers: magic, version, number of tokens
constexpr std::uint64_t kMagic16 = 20240520;
constexpr std::uint64_t kMagic32 = 20240801;

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

class Descriptor {
 public:
  explicit Descriptor(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) fail_to_read(path, errno);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// An empty file maps to nothing. No pipe is waited for.
Mapping map(const fs::path& path) {
  const Descriptor file(path);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_to_read(path, errno);
  if (const char* const other = zero::other_than_file(status.st_mode))
    throw zero::ConfigError("the data " + zero::shown(path.string()) + " is " + other, "give a file or a folder");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return {};
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) fail_to_read(path, errno);
  const auto unmap = [size](const unsigned char* bytes) { ::munmap(const_cast<unsigned char*>(bytes), size); };
  return {{static_cast<const unsigned char*>(data), unmap}, status.st_size};
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

TokenFormat resolve(const fs::path& path, TokenFormat format) {
  if (format != TokenFormat::automatic) return format;
  const std::string extension = fs::is_directory(path) ? "" : path.extension().string();
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
  Builder(const fs::path& path, TokenFormat format) : width_(width_of(format)) {
    source_.path_ = path.string();
    source_.text_ = format == TokenFormat::text;
  }

  void add(const fs::path& path, std::string name) {
    Mapping mapping = map(path);
    if (mapping.size == 0) return;
    Part part{std::move(name), mapping.bytes, width_, source_.size_, mapping.size / width_};
    if (!skip_header(mapping, part, path) && mapping.size % width_ != 0)
      fail(path, "has " + bytes_text(mapping.size) + ", which does not divide into tokens of " + bytes_text(width_));
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
                            "give text, a folder of text, or a file of 16 or 32 bit tokens");
  }

  bool skip_header(const Mapping& mapping, Part& part, const fs::path& path) const {
    if (source_.text_ || mapping.size < kHeaderBytes) return false;
    const std::uint64_t magic = little_endian(mapping.bytes.get(), 4);
    if (magic != kMagic16 && magic != kMagic32) return false;
    part.width = magic == kMagic16 ? 2 : 4;
    part.count = static_cast<std::int64_t>(little_endian(mapping.bytes.get() + 8, 4));
    part.bytes = {mapping.bytes, mapping.bytes.get() + kHeaderBytes};
    const std::int64_t expected = kHeaderBytes + part.count * part.width;
    if (mapping.size != expected)
      fail(path, "has " + bytes_text(mapping.size) + ", but its header announces " + bytes_text(expected));
    return true;
  }

  int width_;
  TokenSource source_;
};

TokenSource TokenSource::open(const fs::path& path, TokenFormat format,
                              const std::vector<std::string>& extensions) try {
  if (!fs::exists(path)) fail_to_read(path, ENOENT);
  Builder builder(path, resolve(path, format));
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

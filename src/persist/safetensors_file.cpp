#include "persist/safetensors_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <system_error>

#include "base/system_files.h"
#include "base/text.h"
#include "zero/error.h"

namespace zero {
namespace {

[[noreturn]] void fail_to_read(const std::string& path, const std::string& why) {
  throw CheckpointError("cannot read " + in_quotes(path) + ": " + why);
}

[[noreturn]] void fail_to_read(const std::string& path) {
  fail_to_read(path, std::generic_category().message(errno));
}

}  // namespace

MappedFile::MappedFile(const std::string& path)
    : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status {};
  if (!file_ || ::fstat(file_.get(), &status) != 0) fail_to_read(path);
  if (const char* const other = other_than_file(status.st_mode))
    fail_to_read(path, std::string("it is ") + other + ", not a file");
  size_ = status.st_size;
  if (size_ == 0) return;
  mapping_ = map_file(file_.get(), size_);
  if (!mapping_) fail_to_read(path);
}

void MappedFile::read(std::int64_t at, std::span<char> to) const {
  const std::int64_t got = read_at(file_.get(), at, to.data(), std::ssize(to));
  if (got < 0) fail_to_read(path_);
  if (got < std::ssize(to)) fail_to_read(path_, "it ends before byte " + std::to_string(at + got));
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(read_safetensors_header(file_.bytes(), file_.size(), path)), by_name_(entries().size()) {
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  std::ranges::sort(by_name_, {}, [&](std::size_t i) -> const std::string& { return entries()[i].name; });
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto name_of = [&](std::size_t i) -> std::string_view { return entries()[i].name; };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return found != by_name_.end() && name_of(*found) == name ? &entries()[*found] : nullptr;
}

void SafetensorsFile::read(const TensorEntry& tensor, std::int64_t begin, std::span<char> to) const {
  std::int64_t end = 0;
  if (__builtin_add_overflow(begin, std::ssize(to), &end)) end = -1;
  const bool ours = tensor.begin >= 0 && tensor.begin <= tensor.end && tensor.end <= header_.data_bytes();
  if (!ours || begin < 0 || begin > end || end > tensor.bytes())
    throw StateError(shown(path()) + ": bytes [" + std::to_string(begin) + ", " + std::to_string(end) + ") of tensor " +
                     in_quotes(tensor.name, '"') + ", which has " + std::to_string(tensor.bytes()));
  file_.read(header_.data_begin + tensor.begin + begin, to);
}

}  // namespace zero

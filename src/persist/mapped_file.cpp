#include "persist/mapped_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/file_bytes.h"
#include "base/file_kind.h"
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

}  // namespace zero

#include "persist/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

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
  const auto size = static_cast<std::size_t>(size_);
  void* const at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_.get(), 0);
  if (at == MAP_FAILED) fail_to_read(path);
  mapping_ = {static_cast<const char*>(at), [size](const char* bytes) { ::munmap(const_cast<char*>(bytes), size); }};
}

void MappedFile::read(std::int64_t at, std::span<char> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(file_.get(), to.data(), to.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_to_read(path_);
    if (got == 0) fail_to_read(path_, "it ends before byte " + std::to_string(at));
    to = to.subspan(static_cast<std::size_t>(got));
    at += got;
  }
}

}  // namespace zero

#include "persist/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/system_files.h"
#include "base/text.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr const char* kVariable = "ZERO_CHECKPOINT_LOCK";

std::string failure(const char* call, const std::string& path, int error) {
  return std::string(call) + " of " + in_quotes(path) + " failed: " + std::strerror(error);
}

// What a process may not, or what a file system cannot.
bool refused(int error) {
  return error == EACCES || error == EPERM || error == EROFS;
}
bool unknown(int error) {
  return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP || error == EINVAL;
}

bool does_without() {
  const char* const text = std::getenv(kVariable);
  return text != nullptr && std::string_view(text) == "0";
}

int open_again(const std::string& path, int flags) {
  return uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
}

// For others who save into the folder: what the process does not let them by its mask.
void let_others_write(int fd, const std::string& path) {
  struct stat folder {};
  const std::string parent = std::filesystem::path(path).parent_path().string();
  if (::stat(parent.empty() ? "." : parent.c_str(), &folder) != 0) return;
  (void)::fchmod(fd, 0644 | (folder.st_mode & 0022));
}

struct Opened {
  Descriptor file;
  bool writes = true;
};

Opened open(const std::string& path) {
  if (const int fd = open_again(path, O_RDWR | O_CREAT | O_EXCL); fd >= 0) {
    let_others_write(fd, path);
    return {Descriptor(fd)};
  }
  if (const int fd = open_again(path, O_RDWR | O_CREAT); fd >= 0) return {Descriptor(fd)};
  const int error = errno;
  if (refused(error))
    if (const int fd = open_again(path, O_RDONLY); fd >= 0) return {Descriptor(fd), false};
  throw CheckpointError(failure("open", path, error));
}

}  // namespace

Env::Lock lock_file(const std::string& path, Flock flock) {
  auto opened = std::make_shared<Opened>(open(path));
  if (uninterrupted([&] { return flock(opened->file.get(), LOCK_EX | LOCK_NB); }) == 0) return opened;
  const int error = errno;
  if (error == EWOULDBLOCK) return nullptr;
  if (error == EBADF && !opened->writes)
    throw CheckpointError(failure("flock", path, error) + ": this file system locks only files that may be written",
                          "let all who save into the folder write that file");
  if (!unknown(error)) throw CheckpointError(failure("flock", path, error));
  if (does_without()) return opened;
  throw CheckpointError(
      failure("flock", path, error) + ": the file system has no locks, by which a save sees that no other is under way",
      "mount it with locks (Lustre: -o flock), or set " + std::string(kVariable) +
          "=0 and give each run a folder of its own");
}

}  // namespace zero

#include "comm/meeting_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "comm/descriptor_passing.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::size_t kLongest = 64;  // bytes

bool alive(pid_t process) {
  return kill(process, 0) == 0 || errno == EPERM;
}

bool ours(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == getuid();
}

bool write_all(const std::string& file, const std::string& text) {
  const Descriptor fd(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  return fd && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

// Written aside, under a name that nobody foresees, and renamed.
void publish_port(const std::string& file, int port) {
  const std::string draft = random_name(file + ".");
  const std::string text = std::to_string(port) + ' ' + std::to_string(getpid()) + '\n';
  if (write_all(draft, text) && rename(draft.c_str(), file.c_str()) == 0) return;
  const std::string why = std::strerror(errno);
  unlink(draft.c_str());
  throw CommError("rank 0: cannot write " + file + ": " + why,
                  "make the folder writable, or set MASTER_ADDR and MASTER_PORT");
}

int read_port(const std::string& file) {
  const Descriptor fd(open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd || !ours(fd.get())) return 0;
  std::array<char, kLongest> text{};
  int port = 0;
  pid_t process = 0;
  if (read(fd.get(), text.data(), text.size() - 1) <= 0) return 0;
  return std::sscanf(text.data(), "%d %d", &port, &process) == 2 && alive(process) ? port : 0;
}

}  // namespace zero

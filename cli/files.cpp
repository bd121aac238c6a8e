#include "cli/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/system_files.h"
#include "base/text.h"
#include "zero/error.h"

namespace cli {
namespace {

std::string cannot(const char* verb, const std::string& path, int error) {
  return std::string("cannot ") + verb + " " + zero::in_quotes(path) + ": " + std::strerror(error);
}

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? std::optional(status) : std::nullopt;
}

// A pipe or a terminal is written as it is.
bool special(const std::string& path) {
  const auto status = status_of(path);
  return status && !S_ISREG(status->st_mode) && !S_ISDIR(status->st_mode);
}

std::string folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

class OutputFile {
 public:
  OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {
    if (!fd_) throw zero::Error(cannot("write", path_, errno));
  }

  int fd() const { return fd_.get(); }
  void write(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t written = ::write(fd_.get(), text.data(), text.size());
      if (written < 0 && errno != EINTR) throw zero::Error(cannot("write", path_, errno));
      if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

 private:
  std::string path_;
  zero::Descriptor fd_;
};

// Takes the place of what is at `path` when it is kept.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(target_of(path)), file_(path, open_beside()) { take_after_old(); }
  ~NewFile() {
    if (!kept_) ::unlink(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::string_view text) const { file_.write(text); }
  void keep() {
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw zero::Error(cannot("write", path_, errno));
    kept_ = true;
  }

 private:
  int open_beside() {
    const auto old = status_of(path_);
    if (old && S_ISDIR(old->st_mode)) return errno = EISDIR, -1;
    if (old && ::access(path_.c_str(), W_OK) != 0) return -1;
    // Whose name cannot be a file's must be found out now, not when the file is renamed.
    if (!old && errno != ENOENT) return -1;
    int fd = -1;
    for (int i = 0; fd < 0 && (i == 0 || errno == EEXIST); ++i) {
      temporary_ = folder_of(path_) + "/.zero-" + std::to_string(::getpid()) + "-" + std::to_string(i);
      fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    return fd;
  }

  void take_after_old() const {
    const auto old = status_of(path_);
    if (!old) return;
    [[maybe_unused]] const int owned = ::fchown(file_.fd(), old->st_uid, old->st_gid);
    ::fchmod(file_.fd(), old->st_mode & 07777);
  }

  std::string path_;
  std::string temporary_;
  OutputFile file_;
  bool kept_ = false;
};

void print(const std::string& text) {
  if (!(std::cout << text).flush())
    throw zero::Error(std::string("cannot write to standard output: ") + std::strerror(errno));
}

}  // namespace

bool is_standard_output(const std::string& path) {
  return path == "-";
}

void check_writable(const std::string& path) try {
  if (!is_standard_output(path) && !special(path)) NewFile probe(path);
} catch (const zero::Error& error) {
  throw zero::ConfigError(error.what());
}

void check_folder(const std::string& path) {
  std::string there = target_of(path);
  while (!status_of(there) && errno == ENOENT && there != folder_of(there)) there = folder_of(there);
  const auto status = status_of(there);
  int error = 0;
  if (!status || ::access(there.c_str(), W_OK | X_OK) != 0) error = errno;
  if (status && !S_ISDIR(status->st_mode)) error = ENOTDIR;
  if (error != 0) throw zero::ConfigError(cannot("write into the folder", path, error));
}

void write_file(const std::string& path, const std::string& text) {
  if (is_standard_output(path)) return print(text);
  if (special(path)) return OutputFile(path, ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY)).write(text);
  NewFile file(path);
  file.write(text);
  file.keep();
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw zero::Error(cannot("read", path, errno));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string target_of(const std::string& path) {
  constexpr int most = 40;
  std::string target = path;
  for (int links = 0; links < most; ++links) {
    std::error_code error;
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) return target;
    target = (std::filesystem::path(target).parent_path() / next).string();
  }
  throw zero::ConfigError(cannot("follow", path, ELOOP));
}

std::string temporary_folder() {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) throw zero::ConfigError("there is no folder for temporary files: " + error.message(), "correct TMPDIR");
  return folder.string();
}

}  // namespace cli

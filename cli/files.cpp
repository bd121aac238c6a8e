#include "files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "zero/error.h"

namespace cli {
namespace {

[[noreturn]] void cannot(const char* verb, const std::string& path) {
  throw zero::Error(std::string("cannot ") + verb + " '" + path + "': " + std::strerror(errno));
}

// A pipe or a terminal is written as it is.
bool special(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp" + std::to_string(::getpid())) {
    if (std::filesystem::is_directory(path_)) errno = EISDIR, cannot("write", path_);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) cannot("write", path_);
  }
  ~NewFile() {
    ::close(fd_);
    if (!kept_) ::unlink(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(fd_, text.data(), text.size());
      if (written < 0 && errno != EINTR) cannot("write", path_);
      if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  void keep() {
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) cannot("write", path_);
    kept_ = true;
  }

 private:
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool kept_ = false;
};

}  // namespace

void check_writable(const std::string& path) {
  if (!special(path)) NewFile probe(path);
}

void write_file(const std::string& path, const std::string& text) {
  if (special(path)) {
    std::ofstream out(path);
    if (!(out << text).flush()) cannot("write", path);
    return;
  }
  NewFile file(path);
  file.write(text);
  file.keep();
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) cannot("read", path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace cli

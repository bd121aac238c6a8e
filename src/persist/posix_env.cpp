#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/system_files.h"
#include "base/text.h"
#include "persist/env.h"
#include "persist/lock_file.h"
#include "zero/error.h"

namespace zero {
namespace {

// A call of the system takes less than 2^31 bytes.
constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 30;
// So many bytes are written before the system is asked to begin to bring them to the disk: it would wait for sync().
constexpr std::int64_t kWriteBack = std::int64_t{8} << 20;

[[noreturn]] void fail(const char* call, const std::string& path, int error = errno) {
  throw CheckpointError(std::string(call) + " of " + in_quotes(path) + " failed: " + std::strerror(error));
}

Descriptor open_or_fail(const std::string& path, int flags) {
  const int fd = uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (fd < 0) fail("open", path);
  return Descriptor(fd);
}

class PosixWritable final : public WritableFile {
 public:
  PosixWritable(std::string path, Caching caching)
      : path_(std::move(path)),
        file_(open_or_fail(path_, O_WRONLY | O_CREAT | O_EXCL)),
        direct_(caching == Caching::direct) {}

  void write(const void* bytes, std::int64_t count) override {
    const auto* from = static_cast<const char*>(bytes);
    while (count > 0) {
      const std::int64_t most = std::min(count, kMostAtOnce);
      const bool past = goes_past_cache(from, most);
      const std::int64_t some = past ? most / kDirectPage * kDirectPage : most;
      const auto written = uninterrupted([&] { return ::write(file_.get(), from, static_cast<std::size_t>(some)); });
      if (written < 0 && past && errno == EINVAL) {
        direct_ = false;
        continue;
      }
      if (written < 0) fail("write", path_);
      from += written;
      count -= written;
      written_ += written;
    }
    if (past_cache_ || written_ - begun_ < kWriteBack) return;
    // Advice: a file system that cannot take it brings them at sync().
    (void)::sync_file_range(file_.get(), begun_, written_ - begun_, SYNC_FILE_RANGE_WRITE);
    begun_ = written_;
  }
  void sync() override {
    if (uninterrupted([&] { return ::fsync(file_.get()); }) != 0) fail("fsync", path_);
  }
  // The system has closed it when it says that it was interrupted.
  void close() override {
    if (::close(file_.release()) != 0 && errno != EINTR) fail("close", path_);
  }

 private:
  // Whether the next write does, which the file is then set to.
  bool goes_past_cache(const char* from, std::int64_t count) {
    const auto on_page = [](std::uintptr_t place) { return place % kDirectPage == 0; };
    const bool can = direct_ && count >= kDirectPage && on_page(reinterpret_cast<std::uintptr_t>(from)) &&
                     on_page(static_cast<std::uintptr_t>(written_));
    if (can == past_cache_) return can;
    const int flags = ::fcntl(file_.get(), F_GETFL);
    if (::fcntl(file_.get(), F_SETFL, can ? flags | O_DIRECT : flags & ~O_DIRECT) != 0) {
      if (!can) fail("fcntl", path_);
      direct_ = false;
      return false;
    }
    past_cache_ = can;
    return can;
  }

  std::string path_;
  Descriptor file_;
  bool direct_;              // asked for, and not refused so far
  bool past_cache_ = false;  // what the file is set to
  std::int64_t written_ = 0, begun_ = 0;
};

class PosixReadable final : public ReadableFile {
 public:
  explicit PosixReadable(std::string path)
      : path_(std::move(path)), file_(open_or_fail(path_, O_RDONLY | O_NONBLOCK | O_NOCTTY)) {
    struct stat info {};
    if (::fstat(file_.get(), &info) != 0) fail("fstat", path_);
    if (!S_ISREG(info.st_mode)) throw CheckpointError("open of " + in_quotes(path_) + " failed: it is no file");
    size_ = info.st_size;
  }

  std::int64_t size() const override { return size_; }
  void read(std::int64_t at, void* bytes, std::int64_t count) override {
    const std::int64_t got = read_at(file_.get(), at, bytes, count);
    if (got < 0) fail("read", path_);
    if (got < count)
      throw CheckpointError("read of " + in_quotes(path_) + " failed: it ends at byte " + std::to_string(at + got));
  }

 private:
  std::string path_;
  Descriptor file_;
  std::int64_t size_ = 0;
};

// Nothing where it is not there.
std::optional<struct stat> look_at(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) return info;
  if (errno != ENOENT && errno != ENOTDIR) fail("lstat", path);
  return {};
}

bool leads_to_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

class PosixEnv final : public Env {
 public:
  void create_folder(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail("mkdir", path, error.value());
  }
  std::unique_ptr<WritableFile> create(const std::string& path, Caching caching) override {
    return std::make_unique<PosixWritable>(path, caching);
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override { return std::make_unique<PosixReadable>(path); }
  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) fail("rename", from);
  }
  void sync_folder(const std::string& path) override {
    const Descriptor folder = open_or_fail(path, O_RDONLY | O_DIRECTORY);
    if (uninterrupted([&] { return ::fsync(folder.get()); }) == 0) return;
    if (errno != EINVAL) fail("fsync", path);  // which file systems say that have nothing to sync of folders
  }
  std::vector<FolderEntry> list(const std::string& path) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), &::closedir);
    if (!folder) fail("opendir", path);
    std::vector<FolderEntry> entries;
    errno = 0;
    for (const dirent* each = ::readdir(folder.get()); each; each = ::readdir(folder.get())) {
      const std::string name = each->d_name;
      const auto info = name == "." || name == ".." ? std::nullopt : look_at(path + "/" + name);
      if (info) {
        const bool link = S_ISLNK(info->st_mode);
        entries.push_back({name, link ? leads_to_folder(path + "/" + name) : S_ISDIR(info->st_mode), link});
      }
      errno = 0;
    }
    if (errno != 0) fail("readdir", path);
    std::ranges::sort(entries, {}, &FolderEntry::name);
    return entries;
  }
  void remove(const std::string& path) override {
    if (::remove(path.c_str()) != 0) fail("remove", path);
  }
  bool exists(const std::string& path) override { return look_at(path).has_value(); }
  bool is_link(const std::string& path) override {
    const auto info = look_at(path);
    return info && S_ISLNK(info->st_mode);
  }
  std::int64_t free_bytes(const std::string& path) override {
    struct statvfs info {};
    if (uninterrupted([&] { return ::statvfs(path.c_str(), &info); }) != 0) fail("statvfs", path);
    const std::uint64_t block = std::max<std::uint64_t>(info.f_frsize, 1);
    return static_cast<std::int64_t>(std::min<std::uint64_t>(info.f_bavail, INT64_MAX / block) * block);
  }
  Lock lock(const std::string& path) override { return lock_file(path, ::flock); }
};

}  // namespace

Env& posix_env() {
  static PosixEnv env;
  return env;
}

}  // namespace zero

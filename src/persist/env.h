// The one door to the file system: what keeps files goes through it, so that tests can fail, lose or crash any of it.
// No torch.
//
// Thread-safety: an Env may be used by several threads at once, a file by one at a time. Every function throws a
// CheckpointError that names path and call, with the system's words.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace zero {

class WritableFile {
 public:
  virtual ~WritableFile() = default;                              // closes it; errors of that are lost
  virtual void write(const void* bytes, std::int64_t count) = 0;  // all of them, behind what was written before
  virtual void sync() = 0;                                        // until what was written is on the disk
  virtual void close() = 0;                                       // once; nothing but the destructor may follow
};

// How bytes reach the disk: through the system's page cache, or past it where they lie in memory and in the file on
// pages of kDirectPage bytes and the file system can do that. What does not goes through the cache all the same.
enum class Caching : std::uint8_t { cached, direct };
constexpr std::int64_t kDirectPage = 4096;

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual std::int64_t size() const = 0;
  // Bytes [at, at + count). Throws, also, where the file ends before.
  virtual void read(std::int64_t at, void* bytes, std::int64_t count) = 0;
};

struct FolderEntry {
  std::string name;
  bool folder = false;  // or a symbolic link that leads to one
  bool link = false;    // a symbolic link, wherever it leads
};

class Env {
 public:
  virtual ~Env() = default;

  // With those above it. One that is there already is fine.
  virtual void create_folder(const std::string& path) = 0;
  // Throws where something is there.
  virtual std::unique_ptr<WritableFile> create(const std::string& path, Caching caching = Caching::cached) = 0;
  virtual std::unique_ptr<ReadableFile> open(const std::string& path) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Until the names in it are on the disk.
  virtual void sync_folder(const std::string& path) = 0;
  virtual std::vector<FolderEntry> list(const std::string& path) = 0;  // by name; without what vanishes meanwhile
  virtual void remove(const std::string& path) = 0;  // a file, a folder that is empty, or a link, not what it leads to
  virtual bool exists(const std::string& path) = 0;  // a link does, wherever it leads
  virtual bool is_link(const std::string& path) = 0;
  virtual std::int64_t free_bytes(const std::string& path) = 0;  // of the file system that a folder is on

  // Of a file, made where it is not there, until the object ends or the process; null while another has it. Who may
  // not write the file can have it, too.
  using Lock = std::shared_ptr<void>;
  virtual Lock lock(const std::string& path) = 0;
};

// The system's. Lives as long as the process.
Env& posix_env();

// Where engines keep their checkpoints: the system's.
Env& checkpoint_env();
// For tests: another, until it is replaced by null.
void replace_checkpoint_env(Env* env);

// With all that is in it. Of links, itself one too, the links: what they lead to stays.
void remove_folder(Env& env, const std::string& path);
// Nothing where it has vanished meanwhile.
void remove_if_there(Env& env, const std::string& path);

// All of a file, where it has at most `most` bytes.
std::string read_text(Env& env, const std::string& path, std::int64_t most);
// A new file, synced.
void write_text(Env& env, const std::string& path, const std::string& text);

}  // namespace zero

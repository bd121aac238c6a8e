// Files in memory that fail, or crash, when they are told to. A crash is what a power cut is: what was not synced is
// there or not. Names that were not synced survive in the order in which they were changed, bytes as they like.
#pragma once

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "persist/env.h"
#include "zero/error.h"

namespace zero::test {

// What survives a crash, of what was not synced.
enum class Survives { nothing, all, some };

class FaultEnv final : public Env {
 public:
  // The operation after so many others fails; or is the last: all after it fail too, until restart().
  void fail_after(std::int64_t operations) { arm(operations, false); }
  void crash_after(std::int64_t operations) { arm(operations, true); }
  void disarm() { strike_at_ = kNever; }
  // Whether that has happened.
  bool struck() const { return struck_; }
  std::int64_t operations() const { return operations_; }
  std::string struck_operation() const { return struck_operation_; }

  void restart(Survives survives, unsigned seed = 0) {
    const std::lock_guard guard(mutex_);
    std::minstd_rand random(seed + 1);
    crash(root_, survives, random);
    crashed_ = false;
    locks_.clear();
    strike_at_ = kNever;
  }

  void set_free_bytes(std::int64_t bytes) { free_bytes_ = bytes; }
  // Past all faults.
  std::string& bytes_of(const std::string& path) { return find(path)->bytes; }
  bool has(const std::string& path) { return find(path) != nullptr; }
  // Files below a folder.
  std::vector<std::string> files(const std::string& folder) {
    std::vector<std::string> paths;
    for (const auto& [name, node] : find(folder)->names)
      if (node->folder)
        for (const std::string& inner : files(folder + "/" + name)) paths.push_back(inner);
      else
        paths.push_back(folder + "/" + name);
    return paths;
  }

  void create_folder(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    operation("mkdir " + path);
    auto node = root_;
    for (const std::string& part : parts(path)) {
      auto& next = node->names[part];
      if (!next) {
        next = std::make_shared<Node>(Node{true});
        changed(*node);
      }
      node = next;
    }
  }
  std::unique_ptr<WritableFile> create(const std::string& path, Caching) override {
    const std::lock_guard guard(mutex_);
    operation("create " + path);
    const auto folder = parent(path);
    auto& node = folder->names[parts(path).back()];
    if (node) fail("create", path, "it exists");
    node = std::make_shared<Node>();
    changed(*folder);
    return std::make_unique<Writable>(*this, node, path);
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    operation("open " + path);
    const auto node = find(path);
    if (!node || node->folder) fail("open", path, "no such file");
    return std::make_unique<Readable>(*this, node, path);
  }
  void rename(const std::string& from, const std::string& to) override {
    const std::lock_guard guard(mutex_);
    operation("rename " + from);
    const auto folder = parent(from);
    if (folder != parent(to) || !find(from)) fail("rename", from, "no such file");
    if (const auto there = find(to); there && (there->folder != find(from)->folder || !there->names.empty()))
      fail("rename", to, "not empty, or of another kind");
    folder->names[parts(to).back()] = find(from);
    folder->names.erase(parts(from).back());
    changed(*folder);
  }
  void sync_folder(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    operation("sync of folder " + path);
    const auto node = find(path);
    if (!node || !node->folder) fail("sync", path, "no such folder");
    node->history = {node->names};
  }
  std::vector<FolderEntry> list(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    operation("list " + path);
    const auto node = find(path);
    if (!node || !node->folder) fail("list", path, "no such folder");
    std::vector<FolderEntry> entries;
    for (const auto& [name, each] : node->names) entries.push_back({name, each->folder});
    return entries;
  }
  void remove(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    operation("remove " + path);
    const auto node = find(path);
    if (!node || !node->names.empty()) fail("remove", path, "no such file, or not empty");
    parent(path)->names.erase(parts(path).back());
    changed(*parent(path));
  }
  bool exists(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    operation("exists " + path);
    return find(path) != nullptr;
  }
  bool is_link(const std::string&) override { return false; }
  std::int64_t free_bytes(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    operation("statvfs " + path);
    return free_bytes_;
  }
  Lock lock(const std::string& path) override {
    const std::lock_guard guard(mutex_);
    operation("lock " + path);
    auto& held = locks_[path];
    if (!held.expired()) return nullptr;
    const auto folder = parent(path);
    auto& node = folder->names[parts(path).back()];
    if (!node) {
      node = std::make_shared<Node>();
      changed(*folder);
    }
    auto lock = std::make_shared<int>();
    held = lock;
    return lock;
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  struct Node {
    using Names = std::map<std::string, std::shared_ptr<Node>>;
    bool folder = false;
    std::string bytes = {}, synced = {};
    Names names = {};
    std::vector<Names> history = {{}};  // since they were synced, then first
  };
  using Path = std::vector<std::string>;

  class Writable final : public WritableFile {
   public:
    Writable(FaultEnv& env, std::shared_ptr<Node> node, std::string path)
        : env_(env), node_(std::move(node)), path_(std::move(path)) {}
    void write(const void* bytes, std::int64_t count) override {
      const std::lock_guard guard(env_.mutex_);
      const std::string text(static_cast<const char*>(bytes), static_cast<std::size_t>(count));
      try {
        env_.operation("write of " + path_);
      } catch (const CheckpointError&) {
        node_->bytes += text.substr(0, text.size() / 2);
        throw;
      }
      node_->bytes += text;
    }
    void sync() override {
      const std::lock_guard guard(env_.mutex_);
      env_.operation("sync of " + path_);
      node_->synced = node_->bytes;
    }
    void close() override {
      const std::lock_guard guard(env_.mutex_);
      env_.operation("close of " + path_);
    }

   private:
    FaultEnv& env_;
    std::shared_ptr<Node> node_;
    std::string path_;
  };

  class Readable final : public ReadableFile {
   public:
    Readable(FaultEnv& env, std::shared_ptr<Node> node, std::string path)
        : env_(env), node_(std::move(node)), path_(std::move(path)) {}
    std::int64_t size() const override { return static_cast<std::int64_t>(node_->bytes.size()); }
    void read(std::int64_t at, void* bytes, std::int64_t count) override {
      const std::lock_guard guard(env_.mutex_);
      env_.operation("read of " + path_);
      if (at < 0 || at + count > size()) fail("read", path_, "it ends before");
      std::copy_n(node_->bytes.data() + at, count, static_cast<char*>(bytes));
    }

   private:
    FaultEnv& env_;
    std::shared_ptr<Node> node_;
    std::string path_;
  };

  [[noreturn]] static void fail(const std::string& call, const std::string& path, const std::string& why) {
    throw CheckpointError(call + " of '" + path + "' failed: " + why);
  }

  void arm(std::int64_t operations, bool crashes) {
    strike_at_ = operations_ + operations;
    crashes_ = crashes;
    struck_ = false;
  }
  void operation(const std::string& what) {
    const bool strikes = operations_++ == strike_at_;
    if (strikes) {
      struck_ = true;
      struck_operation_ = what;
      crashed_ = crashes_;
    }
    if (strikes || crashed_) throw CheckpointError(what + " failed: injected");
  }
  static void changed(Node& folder) { folder.history.push_back(folder.names); }

  static Path parts(const std::string& path) {
    Path all;
    for (const auto& part : std::filesystem::path(path).lexically_normal())
      if (part != "/" && part != "." && !part.empty()) all.push_back(part.string());
    return all;
  }
  std::shared_ptr<Node> find(const Path& path) const {
    auto node = root_;
    for (const std::string& part : path) {
      const auto found = node->names.find(part);
      if (found == node->names.end()) return nullptr;
      node = found->second;
    }
    return node;
  }
  std::shared_ptr<Node> find(const std::string& path) const { return find(parts(path)); }
  std::shared_ptr<Node> parent(const std::string& path) const {
    Path all = parts(path);
    all.pop_back();
    auto node = find(all);
    if (!node || !node->folder) fail("lookup", path, "no such folder");
    return node;
  }

  static void crash(const std::shared_ptr<Node>& node, Survives survives, std::minstd_rand& random) {
    if (!node->folder) {
      const bool lost = survives == Survives::nothing || (survives == Survives::some && random() % 2 == 0);
      if (lost) node->bytes = node->synced;
      node->synced = node->bytes;
      return;
    }
    if (survives == Survives::nothing) node->names = node->history.front();
    if (survives == Survives::some) node->names = node->history[random() % node->history.size()];
    node->history = {node->names};
    for (const auto& [name, each] : node->names) crash(each, survives, random);
  }

  std::mutex mutex_;
  std::shared_ptr<Node> root_ = std::make_shared<Node>(Node{true});
  std::map<std::string, std::weak_ptr<int>> locks_;
  std::int64_t operations_ = 0, strike_at_ = kNever;
  std::int64_t free_bytes_ = kNever;
  bool crashes_ = false, crashed_ = false, struck_ = false;
  std::string struck_operation_;
};

}  // namespace zero::test

// An Env that passes everything on, for those that change one thing.
#pragma once

#include <string>
#include <vector>

#include "persist/env.h"

namespace zero::test {

class PassingEnv : public Env {
 public:
  explicit PassingEnv(Env& real) : real_(real) {}

  void create_folder(const std::string& path) override { real_.create_folder(path); }
  std::unique_ptr<WritableFile> create(const std::string& path, Caching caching) override {
    return real_.create(path, caching);
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override { return real_.open(path); }
  void rename(const std::string& from, const std::string& to) override { real_.rename(from, to); }
  void sync_folder(const std::string& path) override { real_.sync_folder(path); }
  std::vector<FolderEntry> list(const std::string& path) override { return real_.list(path); }
  void remove(const std::string& path) override { real_.remove(path); }
  bool exists(const std::string& path) override { return real_.exists(path); }
  bool is_link(const std::string& path) override { return real_.is_link(path); }
  std::int64_t free_bytes(const std::string& path) override { return real_.free_bytes(path); }
  Lock lock(const std::string& path) override { return real_.lock(path); }

 private:
  Env& real_;
};

}  // namespace zero::test

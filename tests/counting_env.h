// An Env that counts what is read of files of tensors. Thread-safe, if what it passes on to is.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "passing_env.h"

namespace zero::test {

class CountingEnv final : public PassingEnv {
 public:
  using PassingEnv::PassingEnv;
  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    std::unique_ptr<ReadableFile> file = PassingEnv::open(path);
    if (!path.ends_with(".safetensors")) return file;
    return std::make_unique<Counted>(std::move(file), bytes);
  }
  std::atomic<std::int64_t> bytes = 0;

 private:
  class Counted final : public ReadableFile {
   public:
    Counted(std::unique_ptr<ReadableFile> file, std::atomic<std::int64_t>& bytes)
        : file_(std::move(file)), bytes_(bytes) {}
    std::int64_t size() const override { return file_->size(); }
    void read(std::int64_t at, void* to, std::int64_t count) override {
      bytes_ += count;
      file_->read(at, to, count);
    }

   private:
    std::unique_ptr<ReadableFile> file_;
    std::atomic<std::int64_t>& bytes_;
  };
};

}  // namespace zero::test

// A store on disks: its blocks are read and written, and are gone with the process. No torch.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memory/disk_files.h"
#include "memory/disk_service.h"
#include "memory/store.h"
#include "memory/striped_files.h"
#include "zero/disk.h"

namespace zero {

// Operations may be of any bytes, at any place and from any memory. Those that lie on pages of kDiskPage, in the block
// and in memory, go past the page cache without a copy.
class DiskStore final : public Store {
 public:
  // From `memory`, addressable, it takes its buffers, block() x depth() bytes for each directory, and the checks of
  // blocks, booked with them. Throws ConfigError for options that cannot work, StoreError for disks that do not.
  DiskStore(const DiskOptions& options, Store& memory, Book book, DiskSystem& system = disk_system());
  ~DiskStore() override;

  bool addressable() const override { return false; }
  std::int64_t transfer() const override { return transfer_; }
  std::int64_t page() const override { return kDiskPage; }

  // As given, or measured.
  std::int64_t block() const { return options_.block; }
  int depth() const { return options_.depth; }
  bool direct() const;  // of all directories
  std::string_view queue() const { return service_->queue(); }
  // "disk: '/mnt/a', '/mnt/b'; io_uring; operations of 1048576 bytes, 8 at once each; checked"
  std::string describe() const;

 private:
  class Place;

  std::unique_ptr<Block::Place> provide(std::int64_t bytes, Owner owner, int unit) override;

  DiskOptions options_;
  std::int64_t transfer_;
  Store& memory_;
  Block buffers_;
  std::mutex mutex_;  // of space, and of the files' sizes
  DiskSpace space_;
  std::unique_ptr<StripedFiles> files_;
  std::unique_ptr<DiskService> service_;
};

}  // namespace zero

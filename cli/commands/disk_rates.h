// How fast a store on a disk reads and writes, beside the disk itself. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "memory/disk_store.h"

namespace cli {

// Of operations of one size, a constant number of them under way.
struct DiskRate {
  double bandwidth = 0;              // bytes a second
  double operations = 0;             // a second
  double p50 = 0, p95 = 0, p99 = 0;  // seconds from the beginning of an operation to its end
};

struct DiskComparison {
  std::string operation;  // "write", "read"
  DiskRate store, disk;   // the middle one of the rounds; latencies are of the operations of all rounds
  double ratio = 0;       // store to disk, the middle one of the rounds'
};

struct DiskLoad {
  std::int64_t size = 0;  // of a file, a multiple of block x depth
  int rounds = 1;
  bool off_pages = false;  // the store's operations, in the file and in memory
};

// Writes and reads as many bytes of a file through the store and by pread and pwrite, in turns. `told` is called with
// bytes that have been moved. Throws zero::StoreError.
std::vector<DiskComparison> compare_disk(zero::DiskStore& store, const std::string& directory, const DiskLoad& load,
                                         const std::function<void(std::int64_t bytes)>& told);
// Bytes a second of the store alone, the middle ones of the rounds.
struct StoreBandwidths {
  double written = 0, read = 0;
};
StoreBandwidths store_bandwidths(zero::DiskStore& store, const DiskLoad& load);
// A size rounded up to what all of the operations under way move together.
std::int64_t whole_operations(std::int64_t size, const zero::DiskStore& store);
// The bytes that compare_disk() moves in all.
std::int64_t compared_bytes(const DiskLoad& load);

}  // namespace cli

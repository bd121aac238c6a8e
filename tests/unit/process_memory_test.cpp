#include "analysis/process.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

namespace zero::process_memory_test {

constexpr const char* kSmaps =
    "00400000-00500000 r-xp 00000000 fe:00 260368                     /usr/bin/a program\n"
    "Size:               1024 kB\n"
    "Pss:                 100 kB\n"
    "Pss_Dirty:             7 kB\n"
    "01000000-02000000 rw-p 00000000 00:00 0                          [heap]\n"
    "Pss:                 200 kB\n"
    "7f0000000000-7f0000100000 rw-p 00000000 00:00 0 \n"  // a thread's heap
    "Pss:                  50 kB\n"
    "7f0000100000-7f0004000000 ---p 00000000 00:00 0 \n"
    "Pss:                   0 kB\n"
    "7f1000000000-7f1000001000 ---p 00000000 00:00 0 \n"  // a thread's stack
    "KernelPageSize:        4 kB\n"
    "Pss:                   0 kB\n"
    "7f1000001000-7f1000801000 rw-p 00000000 00:00 0 \n"
    "Pss:                  12 kB\n"
    "7f2000000000-7f2010000000 rw-p 00000000 00:00 0 \n"  // the arena
    "Pss:                 400 kB\n"
    "7f3000000000-7f3000100000 rw-s 00000000 00:01 7                  /memfd:zero (deleted)\n"
    "Pss:                  30 kB\n"
    "7f4000000000-7f4000100000 rw-p 00000000 00:00 0 \n"
    "Pss:                 800 kB\n"
    "7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0                  [stack]\n"
    "Pss:                   8 kB\n";

std::map<std::string, std::int64_t> by_name(const std::vector<MemoryShare>& parts) {
  std::map<std::string, std::int64_t> bytes;
  for (const MemoryShare& part : parts) bytes[part.name] = part.bytes / 1024;
  return bytes;
}

TEST(ProcessMemory, ReadsMappings) {
  std::istringstream smaps(kSmaps);
  const std::vector<Mapping> mappings = read_mappings(smaps);
  ASSERT_EQ(mappings.size(), 10u);
  EXPECT_EQ(mappings[0].file, "/usr/bin/a program");
  EXPECT_EQ(mappings[0].begin, 0x400000u);
  EXPECT_EQ(mappings[0].end, 0x500000u);
  EXPECT_EQ(mappings[0].bytes, 100 * 1024);
  EXPECT_EQ(mappings[2].file, "");
  EXPECT_EQ(mappings[7].permissions, "rw-s");
}

TEST(ProcessMemory, SortsMappingsByKind) {
  std::istringstream smaps(kSmaps);
  const KnownMemory known{.arena_begin = 0x7f2000000000,
                          .arena_end = 0x7f2010000000,
                          .arena_waiting = 150 * 1024,
                          .tensors = 60 * 1024,
                          .state = 300 * 1024,
                          .malloc_used = 210 * 1024,
                          .malloc_mapped = 100 * 1024};
  const std::map<std::string, std::int64_t> expected{
      {"tensors", 250 + 60}, {"engine state", 300}, {"shared memory", 30}, {"allocator slack", 150 + 40},
      {"heap", 310 - 60},    {"libraries", 100},    {"thread stacks", 20}, {"other", 400}};
  EXPECT_EQ(by_name(explained(read_mappings(smaps), known)), expected);
}

TEST(ProcessMemory, KnowsStacksByTheirGuardWhateverThePage) {
  for (const int page : {4, 16, 64}) {
    std::ostringstream smaps;
    smaps << std::hex << "7f1000000000-" << 0x7f1000000000 + page * 1024 << std::dec << " ---p 00000000 00:00 0 \n"
          << "KernelPageSize: " << page << " kB\nPss: 0 kB\n"
          << std::hex << 0x7f1000000000 + page * 1024 << "-7f1000801000 rw-p 00000000 00:00 0 \n"
          << std::dec << "KernelPageSize: " << page << " kB\nPss: 12 kB\n";
    std::istringstream text(smaps.str());
    EXPECT_EQ(by_name(explained(read_mappings(text), {})).at("thread stacks"), 12) << page << " KiB";
  }
}

TEST(ProcessMemory, WhatWasHandedOutButNeverWrittenIsNotThere) {
  std::istringstream smaps(kSmaps);
  const auto parts =
      by_name(explained(read_mappings(smaps), {.state = 1 << 30, .malloc_used = 1 << 30, .malloc_mapped = 1 << 30}));
  EXPECT_EQ(parts.at("heap"), 250);
  EXPECT_EQ(parts.at("engine state"), 1200);
  EXPECT_EQ(parts.at("other"), 0);
}

std::int64_t part(const MemoryProcess& process, const std::string& name) {
  for (const MemoryShare& each : process.parts)
    if (each.name == name) return each.bytes;
  return -1;
}

// Of the process that runs this: each part grows by what is added to it, and all are the process.
class ThisProcess : public testing::Test {
 protected:
  static constexpr std::size_t kSize = 48 << 20;

  // What earlier tests left behind would be used again.
  ThisProcess() {
    malloc_trim(0);
    before_ = this_process([] { return KnownMemory(); });
  }

  void grows(const char* name, KnownMemory known = {}) {
    const MemoryProcess after = this_process([&] { return known; });
    EXPECT_NEAR(static_cast<double>(part(after, name) - part(before_, name)), kSize, 0.02 * kSize) << name;
    std::int64_t sum = 0;
    for (const MemoryShare& each : after.parts) sum += each.bytes;
    EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(after.total), 0.03 * static_cast<double>(after.total));
  }

  MemoryProcess before_;
};

class Mapped {
 public:
  Mapped(std::size_t size, int flags) : size_(size) {
    data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    std::memset(data_, 1, size);
  }
  ~Mapped() { munmap(data_, size_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

 private:
  std::size_t size_;
  void* data_;
};

// The sanitizers have a malloc of their own, of which malloc's figures say nothing, and a shadow of all that is
// written.
#ifndef ZERO_SANITIZED
TEST_F(ThisProcess, FindsTheHeap) {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (std::size_t i = 0; i < kSize / 65536; ++i) std::memset(blocks.emplace_back(new char[65536]).get(), 1, 65536);
  grows("heap");
}

TEST_F(ThisProcess, FindsMallocsOwnMappings) {
  const std::vector<char> block(kSize, 1);
  grows("heap");
  EXPECT_EQ(block.back(), 1);
}

// Between blocks that stay nothing can be given back.
TEST_F(ThisProcess, FindsWhatMallocKeeps) {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (std::size_t i = 0; i < 2 * kSize / 65536; ++i) std::memset(blocks.emplace_back(new char[65536]).get(), 1, 65536);
  for (std::size_t i = 0; i < blocks.size(); i += 2) blocks[i].reset();
  grows("allocator slack");
}

TEST_F(ThisProcess, FindsOtherMemory) {
  const Mapped mapped(kSize, MAP_PRIVATE);
  grows("other");
}
#endif

TEST_F(ThisProcess, FindsSharedMemory) {
  const Mapped mapped(kSize, MAP_SHARED);
  grows("shared memory");
}

TEST_F(ThisProcess, FindsAnEnginesState) {
  const Mapped mapped(kSize, MAP_PRIVATE);
  grows("engine state", {.state = kSize});
}

}  // namespace zero::process_memory_test

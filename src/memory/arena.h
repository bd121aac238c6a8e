// Memory for blocks that come and go in the same sizes again and again, as the activations of a training
// step do (M_D of ZeRO-R, section 5.2.3 of the ZeRO paper: no fragmentation, no growth). A block that is
// given back stays for the next of its size, but never so that more pages are held than were in use at
// once: what blocks need beyond that is taken from pages that wait. No torch. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace zero {

class Arena {
 public:
  // Reserves address space only, and `beside` bytes more, of whole pages, which are not the arena's own. `page` is what
  // the system can give back one of, or a multiple. Throws std::bad_alloc.
  explicit Arena(std::size_t address_space, std::size_t page = system_page(), std::size_t beside = 0);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialised, aligned to a page; null when the address space is used up.
  void* take(std::size_t bytes);
  // What take() gave. Returns the bytes that were asked for.
  std::size_t give(void* data);
  bool owns(const void* data) const { return data >= base_ && data < base_ + size_; }

  // Of all that is reserved.
  const void* begin() const { return base_; }
  const void* end() const { return base_ + size_ + beside_; }
  char* beside() const { return base_ + size_; }

  // Gives all waiting pages back to the system, and forgets the peak.
  void trim();

  // By a thread that forks, around it: the other process finds the arena as a whole, and held by nobody.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

  struct Usage {
    std::size_t live = 0;     // bytes of pages in use
    std::size_t waiting = 0;  // of pages held for reuse
    std::size_t peak = 0;     // of `live`; live + waiting never exceeds it
  };
  Usage usage() const;

  // 4 KiB, on other processors than x86 also 16 or 64 KiB.
  static std::size_t system_page();

 private:
  enum class Kind { live, waiting, absent };
  struct Range {
    std::size_t size;
    Kind kind;
    std::size_t asked;
  };
  using Ranges = std::map<char*, Range>;
  using BySize = std::set<std::pair<std::size_t, char*>>;

  BySize& index(Kind kind) { return kind == Kind::waiting ? waiting_ : absent_; }
  void insert(char* begin, std::size_t size, Kind kind);
  Ranges::iterator erase(Ranges::iterator range);
  char* carve(Kind kind, std::size_t size);
  void make_absent(std::size_t bytes);

  std::size_t page_;
  std::size_t size_;
  std::size_t beside_;
  std::size_t mapped_;
  void* mapping_;
  char* base_;
  mutable std::mutex mutex_;
  Ranges ranges_;  // all of the address space, neighbours of one kind joined unless live
  BySize waiting_;
  BySize absent_;
  Usage usage_;
};

}  // namespace zero

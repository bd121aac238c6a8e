// The thread that carries out operations on disks, a constant number of pieces at once. What does not lie on pages, of
// the file or of memory, goes through buffers; the rest of a page that is written in part is read before. No torch.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/lifetimes.h"
#include "memory/disk_operation.h"
#include "memory/disk_queue.h"
#include "memory/striped_files.h"

namespace zero {

class DiskService {
 public:
  // Pieces of at most `block` bytes; as many at once as there are buffers of that size, on pages, in `buffers`.
  DiskService(const StripedFiles& files, std::unique_ptr<DiskQueue> queue, std::span<char> buffers, std::int64_t block,
              bool checks);
  ~DiskService();  // carries out what was submitted
  DiskService(const DiskService&) = delete;
  DiskService& operator=(const DiskService&) = delete;

  // Any thread. Throws StoreError where the queue has failed; then nothing uses the operation's memory.
  Pending submit(std::shared_ptr<DiskOperation> operation);

  std::string_view queue() const { return queue_->name(); }

 private:
  struct Piece {
    std::shared_ptr<DiskOperation> operation;
    std::int64_t begin = 0, end = 0;  // in the line
  };
  // Bytes: of an operation, of what is written together, and of what buffers and places are multiples of.
  struct Grain {
    std::int64_t block = 0, page = 1, alignment = 1;
  };
  enum class Phase { reads_edges, moves };
  // A piece under way.
  struct Slot {
    Piece piece;
    char* buffer = nullptr;
    std::int64_t first = 0, last = 0;  // the pages of the piece
    bool straight = false;             // from and to the memory of its operation
    Phase phase = Phase::moves;
    std::array<DiskTransfer, 2> transfers{};
    int under_way = 0;
    std::optional<DiskFault> fault;
  };
  // Pages, by where they begin, of which a piece has only a part. At most two.
  struct Edges {
    std::array<std::int64_t, 2> pages{};
    std::size_t count = 0;
    std::span<const std::int64_t> all() const { return {pages.data(), count}; }
  };

  std::vector<Piece> cut(const std::shared_ptr<DiskOperation>& operation) const;
  std::int64_t page_of(std::int64_t at) const { return at / grain_.page * grain_.page; }
  Edges edges(const Piece& piece) const;
  bool lock(const Edges& edges, bool writes);
  void unlock(const Edges& edges);

  bool told_to_stop();
  void run();
  void serve();
  void admit();
  bool ended();
  void begin_what_can();
  void begin(Slot& slot);
  void take_place(Slot& slot);
  void fill(Slot& slot);
  void move(Slot& slot);
  void transfer(Slot& slot, std::int64_t at, char* memory, std::int64_t bytes, bool writes);
  void finished(DiskTransfer& transfer);
  std::optional<DiskFault> deliver(Slot& slot);
  void release(Slot& slot);
  void fail_all(const DiskFault& fault);
  char* memory_of(const Slot& slot) const;
  void remember(const DiskExtent& extent, std::int64_t at, const char* bytes, std::int64_t count) const;
  std::optional<DiskFault> verify(const DiskExtent& extent, std::int64_t at, const char* bytes,
                                  std::int64_t count) const;

  const StripedFiles& files_;
  std::unique_ptr<DiskQueue> queue_;
  Grain grain_;
  bool checks_;
  ProcessOfOrigin origin_;

  std::mutex mutex_;
  std::deque<Piece> submitted_;
  bool woken_ = false, stopping_ = false;
  std::optional<DiskFault> broken_;  // the queue is

  // The thread's own.
  std::deque<Piece> waiting_;
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
  std::map<std::int64_t, int> locked_;  // edges of pieces under way: how many read it, or -1: one writes it
  std::thread thread_;
};

}  // namespace zero

// A store that is never addressable: its bytes are kept where nobody gets a pointer to them, and an operation is
// carried out when somebody waits for it or for an older one, on a thread of the store's own, the newest first. What a
// read is to fill is filled with something else at once. So a wait that is forgotten shows as wrong bits. Thread-safe,
// as stores are: the engine's thread and the exchange's use blocks of one store.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/worker.h"
#include "memory/store.h"

namespace zero::test {

// What happens to the stores that share it.
struct LateWatch {
  std::mutex mutex;
  std::int64_t operations = 0;
  std::int64_t most = 0;       // bytes of views of one store that were under way
  std::int64_t under_way = 0;  // operations that nobody has waited for
  std::string faults;          // of those who use the stores
  std::int64_t fails_at = -1;  // counted down by operations; the one that finds 0 fails
};

class LateStore final : public Store {
 public:
  static constexpr std::int64_t kTransfer = 2048;

  LateStore(Book book, std::shared_ptr<LateWatch> watch)
      : Store(Tier::disk, std::move(book)), queue_(std::make_shared<Queue>(std::move(watch))) {}

  bool addressable() const override { return false; }
  std::int64_t transfer() const override { return kTransfer; }

 private:
  struct Operation;

  struct Queue {
    explicit Queue(std::shared_ptr<LateWatch> watching) : watch(std::move(watching)) {}

    void add(const std::shared_ptr<Operation>& operation) {
      const std::lock_guard lock(watch->mutex);
      operation->fails = watch->fails_at >= 0 && watch->fails_at-- == 0;
      for (const auto& other : waiting)
        if (operation->overlaps(*other)) watch->faults += "operations under way overlap\n";
      ++watch->operations;
      ++watch->under_way;
      bytes += operation->bytes;
      watch->most = std::max(watch->most, bytes);
      waiting.push_back(operation);
    }
    void waited(const Operation& operation) {
      const std::lock_guard lock(watch->mutex);
      --watch->under_way;
      bytes -= operation.bytes;
    }
    void end(const std::vector<char>* place) {
      const auto of_it = [place](const auto& operation) { return operation->place == place; };
      const std::lock_guard lock(watch->mutex);
      if (std::erase_if(waiting, of_it) == 0) return;
      watch->faults += "a block ends while it is read or written\n";
    }
    void carry_out_until(const Operation& last) {
      worker
          .submit([&] {
            const std::lock_guard lock(watch->mutex);
            while (!last.carried_out) {
              waiting.back()->carry_out();
              waiting.pop_back();
            }
          })
          .wait();
    }

    std::shared_ptr<LateWatch> watch;
    std::vector<std::shared_ptr<Operation>> waiting;
    std::int64_t bytes = 0;
    Worker worker;
  };

  struct Operation final : Pending::State {
    Operation(Queue& q, std::vector<char>& p, std::int64_t begin, void* data, std::int64_t size, bool write)
        : queue(q), place(&p), at(begin), memory(data), bytes(size), writes(write) {}

    bool overlaps(const Operation& other) const {
      return place == other.place && (writes || other.writes) && at < other.at + other.bytes && other.at < at + bytes;
    }
    void carry_out() {
      carried_out = true;
      if (fails) return;
      char* const there = place->data() + at;
      std::memcpy(writes ? there : memory, writes ? memory : there, static_cast<std::size_t>(bytes));
    }
    void wait() override {
      queue.carry_out_until(*this);
      if (!std::exchange(waited, true)) queue.waited(*this);
      if (fails)
        throw StoreError(std::string("the late store failed to ") + (writes ? "write " : "read ") +
                         std::to_string(bytes) + " bytes");
    }
    bool done() override {
      const std::lock_guard lock(queue.watch->mutex);
      return carried_out;
    }

    Queue& queue;
    std::vector<char>* place;
    std::int64_t at;
    void* memory;
    std::int64_t bytes;
    bool writes, fails = false, carried_out = false, waited = false;
  };

  class Place final : public zero::Block::Place {
   public:
    Place(std::int64_t bytes, std::shared_ptr<Queue> queue)
        : queue_(std::move(queue)), bytes_(static_cast<std::size_t>(bytes), char{0x33}) {}
    ~Place() override { queue_->end(&bytes_); }

    void* data() override { return nullptr; }
    Pending read(std::int64_t at, View to) override {
      std::memset(to.data, 0x5a, static_cast<std::size_t>(to.bytes()));
      return begin(at, to.data, to.bytes(), /*write=*/false);
    }
    Pending write(std::int64_t at, ConstView from) override {
      return begin(at, const_cast<void*>(from.data), from.bytes(), /*write=*/true);
    }

   private:
    Pending begin(std::int64_t at, void* memory, std::int64_t bytes, bool write) {
      auto operation = std::make_shared<Operation>(*queue_, bytes_, at, memory, bytes, write);
      queue_->add(operation);
      return Pending(std::move(operation));
    }

    std::shared_ptr<Queue> queue_;
    std::vector<char> bytes_;
  };

  std::unique_ptr<zero::Block::Place> provide(std::int64_t bytes, Owner, int) override {
    return std::make_unique<Place>(bytes, queue_);
  }

  std::shared_ptr<Queue> queue_;
};

}  // namespace zero::test

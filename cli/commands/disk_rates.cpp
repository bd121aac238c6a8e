#include "cli/commands/disk_rates.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <thread>

#include "base/huge_pages.h"
#include "cli/report/middle.h"

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Something with room for as many stretches as there are threads; each thread reads and writes its own, from its
// beginning to its end.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual void move(std::size_t thread, std::int64_t at, zero::View memory, bool writes) = 0;
};

constexpr std::int64_t kOff = 64;

class ThroughStore final : public Subject {
 public:
  ThroughStore(zero::DiskStore& store, int threads, std::int64_t stretch, std::int64_t off) : off_(off) {
    for (int i = 0; i < threads; ++i) blocks_.push_back(store.take(stretch + zero::kDiskPage, zero::Owner::optimizer));
  }
  void move(std::size_t thread, std::int64_t at, zero::View memory, bool writes) override {
    memory.data = static_cast<char*>(memory.data) + off_;
    (writes ? blocks_[thread].write(at + off_, memory) : blocks_[thread].read(at + off_, memory)).wait();
  }

 private:
  std::int64_t off_;
  std::vector<zero::Block> blocks_;
};

class OfDisk final : public Subject {
 public:
  OfDisk(const std::string& directory, bool direct, int threads, std::int64_t stretch)
      : file_(zero::disk_system(), directory, direct), stretch_(stretch) {
    file_.reserve(threads * stretch);
  }
  void move(std::size_t thread, std::int64_t at, zero::View memory, bool writes) override {
    auto* to = static_cast<char*>(memory.data);
    at += static_cast<std::int64_t>(thread) * stretch_;
    for (std::int64_t left = memory.bytes(); left > 0;) {
      const auto count = static_cast<std::size_t>(left);
      const auto result =
          writes ? ::pwrite(file_.descriptor(), to, count, at) : ::pread(file_.descriptor(), to, count, at);
      if (result < 0 && errno == EINTR) continue;
      if (result <= 0)
        throw zero::StoreError(std::string(writes ? "cannot write " : "cannot read ") + file_.bytes_at(at, left) +
                               ": " + (result < 0 ? std::strerror(errno) : "it ends before"));
      to += result;
      at += result;
      left -= result;
    }
  }

 private:
  zero::DiskFile file_;
  std::int64_t stretch_;
};

class Measured {
 public:
  Measured(Subject& subject, zero::DiskStore& store, std::int64_t stretch)
      : subject_(subject),
        block_(store.block()),
        stretch_(stretch),
        threads_(static_cast<std::size_t>(store.depth())),
        memory_(zero::huge_page_memory(threads_ * room())) {
    std::memset(memory_.get(), 0x5a, threads_ * room());
  }

  // Writes or reads all once. Returns bytes a second; adds how long operations took.
  double run(bool writes, std::vector<double>& latencies) {
    std::vector<std::vector<double>> taken(threads_);
    std::vector<std::exception_ptr> errors(threads_);
    const Clock::time_point begin = Clock::now();
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < threads_; ++i)
        threads.emplace_back([this, i, writes, &taken, &errors] {
          try {
            move(i, writes, taken[i]);
          } catch (...) {
            errors[i] = std::current_exception();
          }
        });
    }
    const double seconds = seconds_since(begin);
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
    for (const std::vector<double>& each : taken) latencies.insert(latencies.end(), each.begin(), each.end());
    return static_cast<double>(stretch_) * static_cast<double>(threads_) / seconds;
  }

 private:
  std::size_t room() const { return static_cast<std::size_t>(block_ + zero::kDiskPage); }
  void move(std::size_t thread, bool writes, std::vector<double>& taken) {
    char* const memory = static_cast<char*>(memory_.get()) + thread * room();
    for (std::int64_t at = 0; at < stretch_; at += block_) {
      const Clock::time_point begin = Clock::now();
      subject_.move(thread, at, {memory, block_, zero::Dtype::u8}, writes);
      taken.push_back(seconds_since(begin));
    }
  }

  Subject& subject_;
  std::int64_t block_, stretch_;
  std::size_t threads_;
  std::shared_ptr<void> memory_;
};

struct Rounds {
  std::vector<double> bandwidths, latencies;
  DiskRate rate(std::int64_t block) const {
    const double bandwidth = middle(bandwidths);
    return {bandwidth, bandwidth / static_cast<double>(block), middle(latencies), middle(latencies, 0.95),
            middle(latencies, 0.99)};
  }
};

}  // namespace

namespace {

// Of writing and of reading; by the side that did it.
template <std::size_t kSides>
using All = std::array<std::array<Rounds, kSides>, 2>;

// All sides in turns, another first each time.
template <std::size_t kSides>
All<kSides> run_rounds(std::array<Measured, kSides>& sides, const DiskLoad& load,
                       const std::function<void(std::int64_t)>& told) {
  std::vector<double> not_counted;
  for (Measured& side : sides) {  // pages of new files are written for the first time
    side.run(/*writes=*/true, not_counted);
    told(load.size);
  }
  All<kSides> all;
  for (int round = 0; round < load.rounds; ++round)
    for (const std::size_t reads : {0U, 1U})
      for (std::size_t turn = 0; turn < kSides; ++turn) {
        const std::size_t side = (turn + static_cast<std::size_t>(round)) % kSides;
        Rounds& of = all[reads][side];
        of.bandwidths.push_back(sides[side].run(reads == 0, of.latencies));
        told(load.size);
      }
  return all;
}

}  // namespace

std::int64_t compared_bytes(const DiskLoad& load) {
  return load.size * (2 + 4 * static_cast<std::int64_t>(load.rounds));
}

std::vector<DiskComparison> compare_disk(zero::DiskStore& store, const std::string& directory, const DiskLoad& load,
                                         const std::function<void(std::int64_t)>& told) {
  const std::int64_t stretch = load.size / store.depth();
  ThroughStore through(store, store.depth(), stretch, load.off_pages ? kOff : 0);
  OfDisk own(directory, store.direct(), store.depth(), stretch);
  std::array sides{Measured(through, store, stretch), Measured(own, store, stretch)};
  const All<2> all = run_rounds(sides, load, told);
  std::vector<DiskComparison> result;
  for (const std::size_t reads : {0U, 1U}) {
    const auto& [by_store, by_disk] = all[reads];
    std::vector<double> ratios;
    for (std::size_t i = 0; i < by_store.bandwidths.size(); ++i)
      ratios.push_back(by_store.bandwidths[i] / by_disk.bandwidths[i]);
    result.push_back(
        {reads ? "read" : "write", by_store.rate(store.block()), by_disk.rate(store.block()), middle(ratios)});
  }
  return result;
}

StoreBandwidths store_bandwidths(zero::DiskStore& store, const DiskLoad& load) {
  const std::int64_t stretch = load.size / store.depth();
  ThroughStore through(store, store.depth(), stretch, 0);
  std::array sides{Measured(through, store, stretch)};
  const All<1> all = run_rounds(sides, load, [](std::int64_t) {});
  return {.written = middle(all[0][0].bandwidths), .read = middle(all[1][0].bandwidths)};
}

std::int64_t whole_operations(std::int64_t size, const zero::DiskStore& store) {
  const std::int64_t together = store.block() * store.depth();
  return std::max<std::int64_t>((size - 1) / together + 1, 1) * together;
}

}  // namespace cli

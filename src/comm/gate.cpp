#include "comm/gate.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "zero/error.h"

namespace zero {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSpins = 400;                                        // about 20 microseconds
constexpr std::chrono::milliseconds kLookAround{100};              // between two looks at who is missing
constexpr std::uint32_t kRankMask = (std::uint32_t{1} << 24) - 1;  // of Control::broken; the cause is above

int cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::milliseconds timeout) {
  const timespec time{timeout.count() / 1000, timeout.count() % 1000 * 1000000};
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

// Every member starts as zero bytes.
struct Gate::Control {
  alignas(64) std::atomic<std::uint32_t> generation;  // meetings so far
  std::atomic<std::uint32_t> sleepers;
  alignas(64) std::atomic<std::uint32_t> arrived;  // for the next meeting
  std::atomic<std::uint32_t> broken;               // a Cause and the rank at fault
};

struct Gate::Desk {
  alignas(64) std::atomic<std::uint32_t> arrivals;
  std::atomic<std::uint32_t> left;
  std::atomic<std::uint64_t> failed;  // the number of the last call in which the rank failed
  char why[512];                      // it gave up, as a string: of the rank that broke the meeting up so
  GateMessage messages[2];
};

std::int64_t Gate::bytes(int ranks) {
  return static_cast<std::int64_t>(sizeof(Control)) + ranks * static_cast<std::int64_t>(sizeof(Desk));
}

Gate::Gate(std::shared_ptr<Segment> segment, int rank, std::vector<int> numbers, std::chrono::milliseconds timeout,
           std::shared_ptr<Waits> waits)
    : segment_(std::move(segment)),
      control_(reinterpret_cast<Control*>(segment_->at(0))),
      rank_(rank),
      ranks_(static_cast<int>(numbers.size())),
      numbers_(std::move(numbers)),
      timeout_(timeout),
      waits_(std::move(waits)),
      spins_(cores() >= ranks_ ? kSpins : 0) {}

Gate::Desk& Gate::desk(int rank) const {
  return reinterpret_cast<Desk*>(control_ + 1)[rank];
}

GateMessage& Gate::message(int rank, std::uint64_t sequence) {
  return desk(rank).messages[sequence % 2];
}

void Gate::meet(const Fingerprint& where, const StillWanted& still_wanted) {
  if (control_->broken.load() != 0) fail(where);
  const std::uint32_t generation = control_->generation.load();
  desk(rank_).arrivals.store(generation + 1);
  if (control_->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks_)) {
    control_->arrived.store(0);
    control_->generation.store(generation + 1);
    if (control_->sleepers.load() != 0) futex_wake_all(control_->generation);
    return;
  }
  if (!spin(generation) && !sleep(generation, still_wanted)) fail(where);
}

bool Gate::spin(std::uint32_t generation) const {
  for (int i = 0; i < spins_; ++i) {
    if (control_->generation.load(std::memory_order_acquire) != generation) return true;
    relax();
  }
  return false;
}

// Whether the ranks have met. Looks at the others when a wait was long, and at first for who has left, since
// nobody is woken for that.
bool Gate::sleep(std::uint32_t generation, const StillWanted& still_wanted) {
  const auto begun = Clock::now(), deadline = begun + timeout_;
  const auto part = timeout_ / Waits::kLong;
  auto tells_at = begun + part;
  const auto met = [&] { return control_->generation.load() != generation; };
  while (!met() && !find_fault(generation)) {
    control_->sleepers.fetch_add(1);
    futex_wait(control_->generation, generation, std::min(kLookAround, part));
    control_->sleepers.fetch_sub(1);
    if (met()) break;
    still_wanted();
    const int absent = first_missing(generation);
    const auto now = Clock::now();
    if (absent < 0 || now < tells_at) continue;
    tells_at = now + part;
    waits_->waits_for(number(absent), this);
    if (now >= deadline) break_up(Cause::late, absent);
  }
  if (met() && tells_at > begun + part) waits_->goes_on(this);
  return met();
}

// A rank may be ahead: it has met and come again.
bool Gate::missing(int rank, std::uint32_t generation) const {
  return static_cast<std::int32_t>(desk(rank).arrivals.load() - (generation + 1)) < 0;
}

int Gate::first_missing(std::uint32_t generation) const {
  for (int r = 0; r < ranks_; ++r)
    if (missing(r, generation)) return r;
  return -1;
}

bool Gate::find_fault(std::uint32_t generation) {
  for (int r = 0; r < ranks_; ++r)
    if (desk(r).left.load() != 0 && missing(r, generation)) break_up(Cause::left, r);
  return find_dead();
}

// A rank that died may have come half-way to a meeting: nobody can rely on it any more. One that leaves says so before
// it lets go of its lock, so the lock is looked at first.
bool Gate::find_dead() {
  for (int r = 0; r < ranks_ && control_->broken.load() == 0; ++r) {
    const bool gone = r != rank_ && desk(r).arrivals.load() != 0 && !segment_->alive(r);
    if (gone && desk(r).left.load() == 0) break_up(Cause::died, r);
  }
  return control_->broken.load() != 0;
}

void Gate::break_up(Cause cause, int rank) {
  std::uint32_t none = 0;
  const std::uint32_t fault = static_cast<std::uint32_t>(cause) << 24 | static_cast<std::uint32_t>(rank);
  control_->broken.compare_exchange_strong(none, fault);
  futex_wake_all(control_->generation);
}

void Gate::leave() {
  if (segment_->inherited()) return;
  desk(rank_).left.store(1);
  futex_wake_all(control_->generation);
}

void Gate::fail_in(std::uint64_t sequence) {
  desk(rank_).failed.store(sequence);
}

void Gate::give_up(const std::string& why) {
  if (control_->broken.load() != 0) return;
  Desk& mine = desk(rank_);
  why.copy(mine.why, sizeof mine.why - 1);  // which is zero bytes until then
  break_up(Cause::failed, rank_);
}

void Gate::check(const Fingerprint& call, std::span<const int> members) {
  if (find_dead()) fail(call);
  for (const int r : members)
    if (desk(r).failed.load() == call.sequence)
      throw CommError(name(rank_) + ": " + call.text() + ": " + name(r) + " failed", "see that rank's own error");
}

std::string Gate::reason(Cause cause, int rank) const {
  switch (cause) {
    case Cause::none: return {};
    case Cause::died: return "died";
    case Cause::left: return "left the group";
    case Cause::late: return "did not arrive within " + std::to_string(timeout_.count()) + " ms";
    case Cause::failed: return "failed there: " + std::string(desk(rank).why);
  }
  return {};
}

void Gate::fail(const Fingerprint& where) const {
  const std::uint32_t broken = control_->broken.load();
  const auto cause = static_cast<Cause>(broken >> 24);
  const int rank = static_cast<int>(broken & kRankMask);
  if (rank != rank_) waits_->waits_for(number(rank), nullptr);
  const std::string whom = cause == Cause::failed ? "" : waits_->of(number(rank));
  throw CommError(name(rank_) + ": " + where.text() + ": " + name(rank) + whom + " " + reason(cause, rank),
                  "see that rank's own error, or raise ZERO_TIMEOUT");
}

}  // namespace zero

// What came and went, when, and whose it was. Whose a block is shows only later (an activation is what lives on, a
// gradient is what a parameter ends up with), so events are logged and settled stretch by stretch: at the end of each
// its events are walked through once, with all that is known by then, and forgotten.
//
// No torch. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "analysis/address_numbers.h"
#include "analysis/names.h"
#include "analysis/timeline.h"
#include "zero/memory_report.h"

namespace zero {

// What was going on when a block came.
struct BlockOrigin {
  Running running;        // by number()
  bool recorded = false;  // gradients were recorded
};

class MemoryLog {
 public:
  MemoryLog();

  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // A name's number; 0 for the empty one.
  int number(std::string_view name);

  // A block that came where another one is says that the other went unseen.
  void came(const void* data, std::int64_t bytes, const BlockOrigin& origin);
  // Of blocks that did not come it takes no notice.
  void went(const void* data);
  // A pass backward through autograd's graph: what came before it, and was recorded, has lived into backward.
  void backward_began();
  // An engine holds more, or less.
  void booked(MemoryOwner owner, const std::string& unit, std::int64_t change);

  // The block is `owner`'s; one that was not seen coming comes now. Returns its number, never used again.
  std::int64_t claim(const void* data, std::int64_t bytes, MemoryOwner owner, const std::string& unit);
  // The block of that number went, if it is there still.
  void went(const void* data, std::int64_t number);

  // What was there before it was watched: booked and claimed from the first of these to the second, it is one sample of
  // the timeline.
  void begin_telling();
  void end_telling();

  // Settles what happened since the last time.
  void settle();
  // As far as it is settled.
  MemoryPeak peak() const;
  std::vector<MemorySample> timeline() const;

  // What happened between two moments.
  struct Span {
    double begin = 0, end = 0;
    std::int64_t first = 0, last = 0, peak = 0;  // bytes
    OwnedBytes owners{};                         // of `last`, if it was settled
  };
  int open();
  Span close(int span);
  Span settle_and_close(int span);

 private:
  using Clock = std::chrono::steady_clock;

  struct Block {
    const void* data = nullptr;
    std::int64_t number = 0;
    std::int64_t bytes = 0;
    std::int64_t passes = 0;  // backward that had begun when it came
    Running running;
    int unit = 0;
    MemoryOwner owner = MemoryOwner::temporary;
    bool claimed = false;
    bool recorded = false;
    bool fresh = true;     // came in this stretch
    bool reached = false;  // a pass backward began while it lived
    bool gone = false;
  };
  // A block came or, of no bytes, went. Looked at many at a time, which leaves the caches to the program in between.
  struct Notice {
    double at;
    const void* data;
    std::int64_t bytes;
    BlockOrigin origin;
  };
  struct Account {
    MemoryOwner owner;
    int unit;
    std::int64_t bytes = 0;
  };
  enum class Kind : std::uint8_t { came, went, booked };
  struct Event {
    double at;
    std::int64_t change;
    std::uint32_t place;  // in blocks_ or accounts_
    Kind kind;
    bool told = false;  // between begin_telling() and end_telling()
  };
  struct Peak {
    struct Part {
      std::int64_t number;  // of a block; 0: of an account
      std::int64_t bytes;
      MemoryOwner owner;
      int unit;
      Running running;
    };
    std::int64_t bytes = 0;
    double at = 0;
    Running running;
    std::vector<Part> parts;
  };
  struct Moment {
    std::size_t event;
    std::int64_t bytes;
  };

  void tell_spans();
  Span close_locked(int span);
  void notice(const Notice& notice);
  void catch_up();
  void see_come(const Notice& notice);
  std::uint32_t add(const void* data, std::int64_t bytes);
  void note(Kind kind, std::uint32_t place, std::int64_t change, double at);
  void remove(std::uint32_t place, double at);
  void settle_locked();
  void settle_noted();
  MemoryOwner owner_of(const Block& block) const;
  void decide();
  std::optional<Moment> replay();
  void apply(const Event& event);
  void keep_peak(const Moment& moment);
  void keep_accounts(std::size_t event);
  void forget_events();
  void claim_in_peak(const Block& block);
  std::string operator_name(const Running& running) const;

  mutable std::mutex mutex_;
  Clock::time_point start_;
  std::vector<Notice> notices_;  // that were not looked at; everything below is as of before them
  Names names_;
  std::vector<Block> blocks_;
  std::vector<std::uint32_t> free_;  // places in blocks_
  Places places_;
  std::vector<Account> accounts_;
  std::map<std::pair<MemoryOwner, int>, std::uint32_t> account_places_;
  std::vector<Event> events_;  // of this stretch
  OwnedBytes settled_{};       // up to this stretch, and in replay() through it
  std::int64_t allocated_ = 0;
  std::int64_t recent_peak_ = 0;  // of allocated_, since spans_ were told
  std::int64_t settled_total_ = 0;
  std::int64_t passes_ = 0;  // backward
  std::int64_t numbers_ = 0;
  std::map<int, Span> spans_;
  int next_span_ = 0;
  Peak peak_;
  Timeline timeline_{4096};
  int tellings_ = 0;
};

}  // namespace zero

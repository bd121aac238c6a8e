#include "state/exchange.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "partition/vote.h"
#include "zero/error.h"

namespace zero {
namespace {

// What an announcement's first word says.
struct Said {
  explicit Said(std::int64_t word)
      : kind(static_cast<Exchange::Kind>(word & 0xff)), variant(static_cast<Exchange::Variant>(word >> 8 & 0xff)) {}
  Exchange::Kind kind;
  Exchange::Variant variant;
};

std::int64_t word_of(const Exchange::Operation& operation) {
  const auto byte = [](auto value, int at) { return std::int64_t{static_cast<std::uint8_t>(value)} << 8 * at; };
  return byte(operation.kind, 0) | byte(operation.variant, 1) | byte(operation.axis, 2) | byte(operation.lane, 3);
}

const char* verb(Exchange::Kind kind) {
  switch (kind) {
    case Exchange::Kind::gather: return "gather parameters of";
    case Exchange::Kind::reduce: return "reduce gradients of";
    case Exchange::Kind::publish: return "publish updated parameters of";
    case Exchange::Kind::direct: return "compute the steps of";
    case Exchange::Kind::vote: return "take a step";
    case Exchange::Kind::setup: return "set up";
    case Exchange::Kind::read: return "read or write";
  }
  return "?";
}

Activity activity_of(Exchange::Kind kind) {
  switch (kind) {
    case Exchange::Kind::gather: return Activity::gather;
    case Exchange::Kind::reduce: return Activity::reduce;
    case Exchange::Kind::publish: return Activity::publish;
    case Exchange::Kind::direct: return Activity::direct;
    case Exchange::Kind::vote: return Activity::vote;
    case Exchange::Kind::setup:
    case Exchange::Kind::read: break;
  }
  return Activity::read;
}

// What the exchange's thread has done, and queued.
class Exchanged final : public Pending::State {
 public:
  Exchanged(Pending ran, std::shared_ptr<SideStream::Work> work) : ran_(std::move(ran)), work_(std::move(work)) {}

  void wait() override {
    try {
      ran_.wait();
    } catch (...) {
      work_->join();
      throw;
    }
    work_->join();
  }
  bool done() override { return ran_.done(); }

 private:
  Pending ran_;
  std::shared_ptr<SideStream::Work> work_;
};

class Diverged : public CommError {
 public:
  using CommError::CommError;
};

}  // namespace

Exchange::Exchange(Device& device, Channels channels, Serve serve, std::function<std::string(int unit)> unit_name)
    : channels_(std::move(channels)), serve_(std::move(serve)), unit_name_(std::move(unit_name)) {
  if (size() == 1) return;
  stream_ = device.side_stream();
  worker_ = std::make_unique<Worker>();
}

// What nobody waited for is done, too, before its memory goes.
Exchange::~Exchange() {
  worker_.reset();
  if (latest_) latest_->join();
}

Pending Exchange::submit(Operation operation) {
  if (!worker_) {
    const Acting acting(observer_, activity_of(operation.kind), operation.unit);
    operation.run(channel(operation));
    return {};
  }
  latest_ = stream_->work();
  Pending ran =
      worker_->submit([this, operation = std::move(operation), observer = observer_, work = latest_]() mutable {
        work->run([&] {
          const Operation mine = std::move(operation);  // ends on the stream, with what it holds
          const Acting acting(observer, activity_of(mine.kind), mine.unit);
          if (failure_) std::rethrow_exception(failure_);
          try {
            carry_out(mine);
          } catch (...) {
            failure_ = std::current_exception();
            throw;
          }
        });
      });
  return Pending(std::make_shared<Exchanged>(std::move(ran), latest_));
}

// A group along an axis tells of its own ranks, by their numbers in it.
void Exchange::carry_out(const Operation& operation) try { agree_and_run(operation); } catch (const Diverged&) {
  throw;
} catch (const CommError& error) {
  if (mesh().size(Axis::replica) == 1) throw;
  throw CommError("rank " + std::to_string(rank()) + " of " + mesh().text() +
                  ", in a group with numbers of its own: " + error.what());
}

// What only concerns a shard group is settled in it, gathers served until it agrees on something that concerns all:
// then no gather is left in it, and what the other groups want is the same, or never will be.
void Exchange::agree_and_run(const Operation& operation) {
  const Axis inner = channels_.gathers;
  for (;;) {
    const std::vector<Announcement> table = announce(operation, inner);
    if (agreed(table)) break;
    if (serve_gathers(operation, table)) return;
  }
  if (operation.axis != inner) {
    const std::vector<Announcement> table = announce(operation, Axis::replica);
    if (!agreed(table)) diverged(table, Axis::replica);
  }
  operation.run(channel(operation));
}

std::vector<Exchange::Announcement> Exchange::announce(const Operation& operation, Axis axis) {
  static_assert(sizeof(Announcement) == kAnnouncementBytes);
  const Announcement mine{word_of(operation), operation.unit, operation.count, sequence_++};
  const Communicator& group = lanes(operation.kind).control.along(axis);
  std::vector<Announcement> table(static_cast<std::size_t>(group.size()));
  group.all_gather({mine.data(), 4, Dtype::i64}, {table.data(), 4 * std::int64_t{group.size()}, Dtype::i64}).wait();
  return table;
}

bool Exchange::agreed(const std::vector<Announcement>& table) const {
  return std::all_of(table.begin(), table.end(), [&](const Announcement& other) {
    return std::equal(other.begin(), other.begin() + 3, table.front().begin());
  });
}

// True when `mine` was among the gathers and is done.
bool Exchange::serve_gathers(const Operation& mine, const std::vector<Announcement>& table) {
  std::set<std::pair<std::int64_t, std::int64_t>> wanted;
  for (const auto& [word, unit, count, sequence] : table)
    if (Said(word).kind == Kind::gather) wanted.emplace(word, unit);
  if (wanted.empty()) diverged(table, channels_.gathers);
  bool done = false;
  for (const auto& [word, unit] : wanted) {
    if (word_of(mine) == word && mine.unit == unit) {
      mine.run(channels_.steps.data);
      done = true;
    } else {
      serve_(channels_.steps.data, static_cast<int>(unit), Said(word).variant);
    }
  }
  return done;
}

// The ranks of a group as those of the mesh.
void Exchange::diverged(const std::vector<Announcement>& table, Axis axis) const {
  std::ostringstream text;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto& [word, unit, count, sequence] = table[i];
    const int peer = rank() + (static_cast<int>(i) - mesh().at(axis, rank())) * mesh().stride(axis);
    text << (i == 0 ? ": " : "; ") << "rank " << peer << " wants, as operation " << sequence << ", to "
         << verb(Said(word).kind);
    if (unit != -1) text << " unit '" << unit_name_(static_cast<int>(unit)) << "'";
    text << " (" << count << " elements)";
  }
  throw Diverged("rank " + std::to_string(rank()) + ": the ranks called different operations" + text.str(),
                 "every rank must run the same sequence of backward, step and gather");
}

}  // namespace zero

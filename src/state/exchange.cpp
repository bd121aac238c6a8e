#include "state/exchange.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "partition/vote.h"
#include "zero/error.h"

namespace zero {
namespace {

const char* verb(std::int64_t kind) {
  switch (static_cast<Exchange::Kind>(kind)) {
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

int unit_in(const Exchange::Operation& operation) {
  return operation.kind == Exchange::Kind::gather ? unit_of_gather(operation.unit) : operation.unit;
}

}  // namespace

Exchange::Exchange(Communicator communicator, Communicator setup, std::function<void(const Communicator&, int)> serve,
                   std::function<std::string(int)> unit_name)
    : communicator_(std::move(communicator)),
      setup_(std::move(setup)),
      serve_(std::move(serve)),
      unit_name_(std::move(unit_name)) {
  if (size() > 1) worker_ = std::make_unique<Worker>();
}

Exchange::~Exchange() = default;

Pending Exchange::submit(Operation operation) {
  if (!worker_) {
    const Acting acting(observer_, activity_of(operation.kind), unit_in(operation));
    operation.run(channel(operation.kind));
    return {};
  }
  return worker_->submit([this, operation = std::move(operation), observer = observer_] {
    const Acting acting(observer, activity_of(operation.kind), unit_in(operation));
    if (failure_) std::rethrow_exception(failure_);
    try {
      carry_out(operation);
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
  });
}

void Exchange::carry_out(const Operation& operation) {
  for (;;) {
    const std::vector<Announcement> table = announce(operation);
    const bool agreed = std::all_of(table.begin(), table.end(), [&](const Announcement& other) {
      return std::equal(other.begin(), other.begin() + 3, table.front().begin());
    });
    if (agreed) return operation.run(channel(operation.kind));
    if (serve_gathers(operation, table)) return;
  }
}

std::vector<Exchange::Announcement> Exchange::announce(const Operation& operation) {
  static_assert(sizeof(Announcement) == kAnnouncementBytes);
  const Announcement mine{static_cast<std::int64_t>(operation.kind), operation.unit, operation.count, sequence_++};
  std::vector<Announcement> table(static_cast<std::size_t>(size()));
  channel(operation.kind)
      .all_gather({mine.data(), 4, Dtype::i64}, {table.data(), 4 * static_cast<std::int64_t>(size()), Dtype::i64})
      .wait();
  return table;
}

// True when `mine` was among the gathers and is done.
bool Exchange::serve_gathers(const Operation& mine, const std::vector<Announcement>& table) {
  std::set<std::int64_t> units;
  for (const Announcement& other : table)
    if (static_cast<Kind>(other[0]) == Kind::gather) units.insert(other[1]);
  if (units.empty())
    throw CommError("rank " + std::to_string(rank()) + ": the ranks called different operations" + describe(table),
                    "every rank must run the same sequence of backward, step and gather");
  bool done = false;
  for (const std::int64_t unit : units) {
    if (mine.kind == Kind::gather && mine.unit == unit) {
      mine.run(communicator_);
      done = true;
    } else {
      serve_(communicator_, static_cast<int>(unit));
    }
  }
  return done;
}

std::string Exchange::describe(const std::vector<Announcement>& table) const {
  std::ostringstream text;
  for (std::size_t rank = 0; rank < table.size(); ++rank) {
    const auto& [kind, unit, count, sequence] = table[rank];
    text << (rank == 0 ? ": " : "; ") << "rank " << rank << " wants, as operation " << sequence << ", to "
         << verb(kind);
    if (unit != -1) text << " unit '" << unit_name_(unit_of_gather(static_cast<int>(unit))) << "'";
    text << " (" << count << " elements)";
  }
  return text.str();
}

}  // namespace zero

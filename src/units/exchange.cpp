#include "units/exchange.h"

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "base/random.h"
#include "comm/metered.h"
#include "partition/vote_sizes.h"
#include "zero/error.h"

namespace zero {
namespace {

// What an announcement's first word says.
struct AnnouncedWord {
  explicit AnnouncedWord(std::int64_t word)
      : kind(static_cast<Exchange::Kind>(word & 0xff)),
        variant(static_cast<Exchange::Variant>(word >> 8 & 0xff)),
        alone((word >> 32 & 0xff) != 0),
        emptied(word >> 40) {}
  Exchange::Kind kind;
  Exchange::Variant variant;
  bool alone;
  std::int64_t emptied;
};

std::int64_t word_of(const Exchange::Operation& operation) {
  const auto byte = [](auto value, int at) { return std::int64_t{static_cast<std::uint8_t>(value)} << 8 * at; };
  return byte(operation.kind, 0) | byte(operation.variant, 1) | byte(operation.axis, 2) | byte(operation.lane, 3) |
         byte(operation.alone, 4) | static_cast<std::int64_t>(std::uint64_t{operation.emptied} << 40);
}

// What of it ranks have to agree on.
std::int64_t operation_of(std::int64_t word) {
  return word & ~(std::int64_t{0xff} << 32);
}

bool agreed(std::span<const std::array<std::int64_t, 4>> table) {
  const auto& first = table.front();
  return std::ranges::all_of(table, [&](const auto& other) {
    return operation_of(other[0]) == operation_of(first[0]) && other[1] == first[1] && other[2] == first[2];
  });
}

bool any_rests(std::span<const std::array<std::int64_t, 4>> table) {
  return std::ranges::any_of(table,
                             [](const auto& each) { return AnnouncedWord(each[0]).kind == Exchange::Kind::rest; });
}

bool any_gathers_alone(std::span<const std::array<std::int64_t, 4>> table) {
  return std::ranges::any_of(table, [](const auto& each) {
    return AnnouncedWord(each[0]).kind == Exchange::Kind::gather && AnnouncedWord(each[0]).alone;
  });
}

const char* verb(Exchange::Kind kind) {
  switch (kind) {
    case Exchange::Kind::gather: return "gather parameters of";
    case Exchange::Kind::reduce: return "reduce gradients of";
    case Exchange::Kind::publish: return "publish updated parameters of";
    case Exchange::Kind::whole_tensor: return "compute the steps of";
    case Exchange::Kind::vote: return "take a step";
    case Exchange::Kind::setup: return "build an engine";
    case Exchange::Kind::order: return "agree on the order of gradients after the first backward";
    case Exchange::Kind::save: return "save a checkpoint";
    case Exchange::Kind::load: return "load a state";
    case Exchange::Kind::read: return "read or write";
    case Exchange::Kind::emptied: return "tell which gradients zero_grad() left";
    case Exchange::Kind::rest:
    case Exchange::Kind::serve: return "exchange nothing";
  }
  return "?";
}

Activity activity_of(Exchange::Kind kind) {
  switch (kind) {
    case Exchange::Kind::gather: return Activity::gather;
    case Exchange::Kind::reduce: return Activity::reduce;
    case Exchange::Kind::publish: return Activity::publish;
    case Exchange::Kind::whole_tensor: return Activity::direct;
    case Exchange::Kind::vote: return Activity::vote;
    default: break;
  }
  return Activity::read;
}

// What the exchange's threads have done, and queued.
class Exchanged final : public Pending::State {
 public:
  Exchanged(std::shared_ptr<SideStream::Work> work, const Exchange& exchange)
      : work_(std::move(work)), exchange_(exchange) {}

  Pending ran;      // by the thread that agrees
  Pending carried;  // by another one; set, if at all, before that has run

  void wait() override {
    try {
      std::optional<Exchange::OthersServe> others;
      if (!done()) others.emplace(exchange_);
      ran.wait();
      carried.wait();
    } catch (...) {
      work_->join();
      throw;
    }
    work_->join();
  }
  bool done() override { return ran.done() && carried.done(); }

 private:
  std::shared_ptr<SideStream::Work> work_;
  const Exchange& exchange_;
};

// Who carries it out, once it is agreed on; null: who agrees.
Carrier* carrier_of(const Exchange::Operation& operation, const Carriers& carriers) {
  using Kind = Exchange::Kind;
  if (operation.kind == Kind::reduce) return carriers.reductions.get();
  const bool gathers = operation.kind == Kind::gather || (operation.kind == Kind::publish && operation.unit >= 0);
  return gathers ? carriers.gathers.get() : nullptr;
}

class Diverged : public CommError {
 public:
  using CommError::CommError;
};

}  // namespace

Exchange::Exchange(Device& device, Channels channels, std::function<std::string(int unit)> unit_name)
    : channels_(std::move(channels)), unit_name_(std::move(unit_name)) {
  if (size() == 1) return;
  agreeing_ = std::make_unique<Carrier>(device.side_stream());
  if (!channels_.gathering) return;
  for (auto* const each : {&carriers_.gathers, &carriers_.reductions})
    *each = std::make_unique<Carrier>(device.side_stream());
}

// That serve, of a thread.
struct Exchange::StandingByHere {
  void remove(const Exchange* exchange) {
    const std::lock_guard lock(mutex);
    std::erase(exchanges, exchange);
  }
  std::mutex mutex;
  std::vector<const Exchange*> exchanges;
  std::atomic<bool> in_any_order = false;
};

void Exchange::others_serve(const Exchange& but, bool on) {
  StandingByHere* const here = ThreadShared<StandingByHere>::here();
  if (here == nullptr || !here->in_any_order) return;
  const std::lock_guard lock(here->mutex);
  for (const Exchange* const each : here->exchanges)
    if (each != &but) each->agreeing_->worker().idle_at_once(on);
}

void Exchange::in_any_order() {
  ThreadShared<StandingByHere>::own()->in_any_order = true;
}

Exchange::OthersServe::OthersServe(const Exchange& exchange) : exchange_(exchange) {
  others_serve(exchange_, true);
}

Exchange::OthersServe::~OthersServe() {
  others_serve(exchange_, false);
}

// What nobody waited for is done, too, before its memory goes.
void Exchange::stop() noexcept {
  if (standing_.here) standing_.here->remove(this);
  if (agreeing_) agreeing_->stop();
  carriers_.stop();
  if (const auto served = std::exchange(at_rest_, nullptr)) served->join();
}

void Exchange::emptied(const std::string& gradients) {
  emptied_ = static_cast<std::uint32_t>(fnv1a(std::to_string(emptied_) + ' ' + gradients) >> 40);
}

Pending Exchange::submit(Operation operation) {
  if (operation.kind == Kind::reduce || operation.kind == Kind::vote) operation.emptied = emptied_;
  if (operation.kind == Kind::gather && standing_.here) operation.alone |= standing_.here->in_any_order;
  if (!agreeing_) {
    const ActivityScope acting(observer_, activity_of(operation.kind), operation.unit);
    operation.run(channel(operation));
    return {};
  }
  if (!origin_.here())
    origin_.require("rank " + std::to_string(rank()) + " cannot " + wish({word_of(operation), operation.unit}));
  Carrier* const by = carrier_of(operation, carriers_);
  const auto work = (by == nullptr ? *agreeing_ : *by).work();
  const auto way = std::make_shared<Exchanged>(work, *this);
  Course course{std::move(operation), observer_, work};
  way->ran = agreeing_->carry([this, by, way, course = std::move(course)]() mutable {
    by == nullptr ? carry_out(std::move(course)) : void(way->carried = carry(*by, std::move(course)));
  });
  return Pending(way);
}

// Where it is agreed on.
void Exchange::carry_out(Course course) {
  course.work->run([&] {
    const Operation mine = std::move(course.operation);  // ends on the stream, with what it holds
    const ActivityScope acting(course.observer, activity_of(mine.kind), mine.unit);
    bool wanted = false;
    failure_.rethrow();
    attempt([&] { wanted = agree(mine, {}); });
    if (!wanted) return;
    carriers_.settle();
    failure_.rethrow();
    attempt([&] { mine.run(channel(mine)); });
  });
}

// What was agreed on is carried out whatever else has failed since: peers may wait in it.
Pending Exchange::carry(Carrier& by, Course course) {
  bool wanted = false;
  std::exception_ptr fault;
  try {
    failure_.rethrow();
    attempt([&] { wanted = agree(course.operation, course.observer); });
  } catch (...) {
    fault = std::current_exception();
  }
  return by.carry([this, &by, wanted, fault, course = std::move(course)]() mutable {
    course.work->run([&] {
      const Operation mine = std::move(course.operation);  // as above
      if (fault) std::rethrow_exception(fault);
      if (!wanted) return;
      if (by.failed()) failure_.rethrow();
      const ActivityScope acting(course.observer, activity_of(mine.kind), mine.unit);
      try {
        attempt([&] { mine.run(channel(mine)); });
      } catch (...) {
        by.fail();
        throw;
      }
    });
  });
}

const MeshGroups& Exchange::channel(const Operation& operation) const {
  if (operation.lane == Lane::control) return lanes(operation.kind).control;
  return operation.kind == Kind::gather || operation.kind == Kind::publish ? channels_.of_gathers()
                                                                           : lanes(operation.kind).data;
}

bool Exchange::Failure::any() const {
  const std::lock_guard lock(mutex_);
  return first_ != nullptr;
}

void Exchange::Failure::note(std::exception_ptr what) {
  const std::lock_guard lock(mutex_);
  if (!first_) first_ = std::move(what);
}

void Exchange::Failure::rethrow() const {
  const std::lock_guard lock(mutex_);
  if (first_) std::rethrow_exception(first_);
}

// A group along an axis tells of its own ranks, by their numbers in it.
template <class Action>
void Exchange::attempt(const Action& action) try {
  try {
    action();
  } catch (const Diverged&) {
    throw;
  } catch (const CommError& error) {
    if (mesh().size(Axis::replica) == 1) throw;
    throw CommError("rank " + std::to_string(rank()) + " of " + mesh().text() +
                    ", in a group with numbers of its own: " + error.what());
  }
} catch (...) {
  failure_.note(std::current_exception());
  throw;
}

void Exchange::confer(Kind kind, const std::function<void(const Communicator& all)>& talk) {
  run({.kind = kind, .run = [&](const MeshGroups& groups) { talk(groups.along(Axis::data)); }, .lane = Lane::control});
}

std::vector<std::int64_t> Exchange::table(Kind kind, std::span<const std::int64_t> words, Axis axis, int unit) {
  if (size() == 1) return {words.begin(), words.end()};
  const auto count = static_cast<std::int64_t>(words.size());
  const int ranks = mesh().size(axis);
  std::vector<std::int64_t> all(words.size() * static_cast<std::size_t>(ranks));
  run({.kind = kind,
       .unit = unit,
       .count = count,
       .run =
           [&](const MeshGroups& groups) {
             groups.carry_out(table_route(groups.mesh(), axis, count, groups.rank()), {words.data(), count, Dtype::i64},
                              {all.data(), ranks * count, Dtype::i64});
           },
       .lane = Lane::control});
  return all;
}

void Exchange::broadcast(Kind kind, int unit, View values, int root) {
  run({kind, unit, values.count, [values, root](const MeshGroups& groups) {
         if (values.count > 0) groups.along(Axis::data).broadcast(values, root).wait();
       }});
}

Pending Exchange::barrier(Kind kind, int unit) {
  return submit(
      {kind, unit, 0, [axis = channels_.gathers](const MeshGroups& groups) { groups.along(axis).barrier().wait(); }});
}

void Exchange::meet(int unit) {
  run({.kind = Kind::read,
       .unit = unit,
       .run = [](const MeshGroups&) {},
       .axis = channels_.gathers,
       .lane = Lane::control});
}

// What only concerns a shard group is settled in it, gathers served until it agrees on something that concerns all:
// then no gather is left in it, and what the other groups want is the same, or never will be. Who rested says once more
// what it wants, which it may know by now. False where the operation is done, with others' gathers, of which is told.
bool Exchange::agree(const Operation& operation, const std::weak_ptr<EngineObserver>& told) {
  const Axis inner = channels_.gathers;
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const Table table = announce(operation, inner);
    if (agreed(table)) break;
    if (any_rests(table)) {
      require_peers(operation, table, begin);
    } else if (serve(operation, table, told)) {
      return false;
    }
  }
  if (operation.axis != inner) {
    const Table table = announce(operation, Axis::replica);
    if (!agreed(table)) diverged(table, Axis::replica);
  }
  return true;
}

Exchange::Table Exchange::announce(const Operation& operation, Axis axis) {
  return announce({word_of(operation), operation.unit, operation.count}, axis, lanes(operation.kind).meter.get());
}

Exchange::Table Exchange::announce_none(Kind kind) {
  return announce({word_of({.kind = kind, .run = {}}), -1}, channels_.gathers, nullptr);
}

// Whether a rank rests at that moment is no matter of the step's, and is not counted.
Exchange::Table Exchange::announce(Announcement mine, Axis axis, TrafficMeter* meter) {
  static_assert(sizeof(Announcement) == kAnnouncementBytes);
  mine.back() = sequence_++;
  const Communicator& group = channels_.announcing.along(axis);
  const Clock::time_point begin = Clock::now();
  Table table(static_cast<std::size_t>(group.size()));
  Pending said =
      group.all_gather({mine.data(), 4, Dtype::i64}, {table.data(), 4 * std::int64_t{group.size()}, Dtype::i64});
  said.wait();
  if (meter != nullptr && group.size() > 1 && !any_rests(table))
    meter->count(Collective::all_gather, said.moved(), std::chrono::duration<double>(Clock::now() - begin).count());
  return table;
}

// On the stream of gathers, whose memory these use, too.
bool Exchange::serve(const Operation& operation, const Table& table, const std::weak_ptr<EngineObserver>& told) {
  bool done = false;
  const ActivityScope acting(told, activity_of(operation.kind), operation.unit);
  const auto work = carriers_.of_gathers(*agreeing_).stream().work();
  work->run([&] { done = serve_gathers(&operation, table); });
  work->join();
  return done;
}

// True when `mine` was among the gathers and is done; null: there is none.
bool Exchange::serve_gathers(const Operation* mine, const Table& table) {
  std::set<std::pair<std::int64_t, std::int64_t>> wanted;
  for (const auto& [word, unit, count, sequence] : table)
    if (AnnouncedWord(word).kind == Kind::gather) wanted.emplace(operation_of(word), unit);
  if (wanted.empty()) diverged(table, channels_.gathers);
  carriers_.settle();
  bool done = false;
  for (const auto& [word, unit] : wanted) {
    if (mine != nullptr && operation_of(word_of(*mine)) == word && mine->unit == unit) {
      mine->run(channels_.of_gathers());
      done = true;
    } else {
      serve_(channels_.of_gathers(), static_cast<int>(unit), AnnouncedWord(word).variant);
    }
  }
  return done;
}

void Exchange::stand_by() {
  if (!agreeing_) return;
  at_rest_ = carriers_.of_gathers(*agreeing_).stream().work();
  standing_.on = true;
  standing_.here = ThreadShared<StandingByHere>::own();
  {
    const std::lock_guard lock(standing_.here->mutex);
    standing_.here->exchanges.push_back(this);
  }
  const auto after = std::max<std::chrono::milliseconds>(time_limit() / 100, std::chrono::milliseconds(1));
  agreeing_->worker().when_idle(after, [this, worker = &agreeing_->worker()] { return rest(*worker); });
}

// A rank that rests until then hears the others' last announcement.
void Exchange::end_standing_by() {
  if (standing_.on.exchange(false)) meet();
}

// On the exchange's thread, which has nothing to do: true where more is to be expected. Between the ranks' two
// announcements an operation may have been submitted, or shards begun to change, here.
bool Exchange::rest(const Worker& worker) {
  try {
    if (failure_.any() || !standing_.on) return false;
    for (Table table = announce_none(Kind::rest); any_gathers_alone(table);) {
      if (worker.has_tasks()) return false;
      const std::unique_lock unchanged(shards_, std::try_to_lock);
      if (!unchanged || behind_ || !at_rest_) return false;
      table = announce_none(Kind::serve);
      if (any_rests(table)) continue;
      at_rest_->run([&] { serve_gathers(nullptr, table); });
      return true;
    }
  } catch (...) {
    failure_.note(std::current_exception());
  }
  return false;
}

Exchange::Changing::Changing(Exchange& exchange) : exchange_(exchange), lock_(exchange.shards_) {
  if (exchange_.at_rest_) exchange_.at_rest_->join();
}

Exchange::Changing::~Changing() {
  if (!exchange_.at_rest_) return;
  try {
    exchange_.at_rest_ = exchange_.carriers_.of_gathers(*exchange_.agreeing_).stream().work();
  } catch (const std::exception&) {
    exchange_.at_rest_.reset();  // the device has failed, as the next call will say
  }
}

std::chrono::milliseconds Exchange::time_limit() const {
  return channels_.announcing.along(channels_.gathers).impl()->time_limit();
}

// Ranks that live, and exchange nothing, are waited for as long as those that do not answer.
void Exchange::require_peers(const Operation& operation, const Table& table, Clock::time_point begin) const {
  if (Clock::now() - begin < time_limit()) return;
  std::string resting;
  for (std::size_t i = 0; i < table.size(); ++i)
    if (AnnouncedWord(table[i][0]).kind == Kind::rest)
      resting += (resting.empty() ? "" : ", ") + std::to_string(peer(i, channels_.gathers));
  throw CommError(
      "rank " + std::to_string(rank()) + " waited " + std::to_string(time_limit().count()) + " ms to " +
          wish({word_of(operation), operation.unit}) + ", and came to no call of the engine's on rank " + resting +
          ", whose program does something else, or waits in a collective of its own",
      "every rank must run the same sequence of forward, backward, step and gather; one without data calls "
      "engine.backward(zero::no_data()); forwards without gradients alone may be more on one rank than on another");
}

std::string Exchange::wish(const Announcement& announcement) const {
  const std::int64_t unit = announcement[1];
  return verb(AnnouncedWord(announcement[0]).kind) +
         (unit < 0 ? "" : " unit '" + unit_name_(static_cast<int>(unit)) + "'");
}

// The ranks of a group as those of the mesh.
int Exchange::peer(std::size_t place, Axis axis) const {
  return rank() + (static_cast<int>(place) - mesh().at(axis, rank())) * mesh().stride(axis);
}

void Exchange::diverged(const Table& table, Axis axis) const {
  std::ostringstream text;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto& [word, unit, count, sequence] = table[i];
    text << (i == 0 ? ": " : "; ") << "rank " << peer(i, axis) << " wants, as operation " << sequence << ", to "
         << wish(table[i]);
    if (count > 0) text << " (" << count << " elements)";
    if (AnnouncedWord(word).emptied != AnnouncedWord(table.front()[0]).emptied)
      text << ", when zero_grad() has emptied other gradients";
  }
  throw Diverged("rank " + std::to_string(rank()) + ": the ranks called different operations" + text.str(),
                 "every rank must run the same sequence of backward, zero_grad, step and gather");
}

}  // namespace zero

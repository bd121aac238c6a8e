#include "partition/activation_plan.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "partition/eviction.h"
#include "partition/overlapped_moves.h"

namespace zero {
namespace {

// What goes first: what costs least for its bytes and for how far off its next use is, to a power. Of the budget a
// forward may fill a share, so that what it leaves is kept until backward has room for its own.
struct DropRule {
  double share;
  double exponent;
  bool for_results;      // the next use is also that of what was dropped and comes of it
  double moves = 1;      // what it costs to store, of what it takes: it goes on beside operators
  bool gathers = false;  // units once more, where they are not there
};

constexpr std::array kShares{1.0, .85, .7, .55, .4};
constexpr std::array kExponents{0.0, .25, .5, 1.0, 2.0};
constexpr std::array kMoves{1.0, .2, .02};
// Recomputations of all operators together, for each: more is running in circles.
constexpr std::int64_t kMostRecomputations = 4;

// Which units are there when: those of the operator that used some last, and of the next one that uses others, which
// are gathered ahead.
class GatheredUnits {
 public:
  explicit GatheredUnits(const OperatorTrace& trace)
      : trace_(trace), latest_(trace.operators.size() + 1, kNone), next_(trace.operators.size() + 1, kNone) {
    const auto count = static_cast<int>(trace.operators.size());
    for (int i = 0; i <= count; ++i)
      latest_[at(i)] = i < count && !units(i).empty() ? i : i > 0 ? latest_[at(i - 1)] : kNone;
    for (int i = count - 1; i >= 0; --i) {
      const int after = units_differ(i + 1, latest_[at(i)]) ? i + 1 : next_[at(i + 1)];
      next_[at(i)] = after;
      while (next_[at(i)] != kNone && !units_differ(next_[at(i)], latest_[at(i)]))
        next_[at(i)] = next_[at(next_[at(i)])];
    }
  }
  bool any() const { return next_.front() != kNone || latest_.front() != kNone; }
  bool has(int unit, int when) const { return among(unit, latest_[at(when)]) || among(unit, next_[at(when)]); }

 private:
  static constexpr int kNone = -1;
  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  const std::vector<int>& units(int op) const { return trace_.operators[at(op)].units; }
  bool among(int unit, int op) const {
    return op != kNone && std::find(units(op).begin(), units(op).end(), unit) != units(op).end();
  }
  // Whether an operator uses units, and others than another one.
  bool units_differ(int op, int from) const {
    if (op >= static_cast<int>(trace_.operators.size()) || units(op).empty()) return false;
    return from == kNone || units(op) != units(from);
  }

  const OperatorTrace& trace_;
  std::vector<int> latest_, next_;  // operators
};

bool better(const ActivationPlan& one, const ActivationPlan& other) {
  return std::pair(one.gathers, one.nanoseconds) < std::pair(other.gathers, other.nanoseconds);
}

StoredWay dearer(StoredWay way, double times) {
  way.nanoseconds_a_byte *= times;
  return way;
}

// One run through the trace.
class Foretold final : public Eviction {
 public:
  Foretold(OperatorTrace& trace, const GatheredUnits& units, const std::vector<std::vector<int>>& deaths,
           std::int64_t budget, DropRule rule, std::uint32_t seed = 0, StoredWay way = {})
      : Eviction(trace, budget, seed, dearer(way, rule.moves)),
        units_(units),
        deaths_(deaths),
        whole_budget_(budget),
        rule_(rule) {
    exponent_ = rule.exponent;
    plan_.begins.reserve(trace.operators.size());
    plan_.needed.resize(trace.operators.size());
    if (way) ready_.resize(trace.storages.size());
  }

  ~Foretold() override {
    for (const int number : went_stale_) op(number).again = true;  // for the next run
  }
  Foretold(const Foretold&) = delete;
  Foretold& operator=(const Foretold&) = delete;

  // None where it ran in circles, went above the budget, or takes longer than `best`, which may be null.
  std::optional<ActivationPlan> run(StoredWay real, const ActivationPlan* best);

 private:
  void dropped(int storage, bool stored) override;
  void fetch(int storage) override;
  void discard(int) override {}
  bool inexact_next(int storage) override {
    const int next = next_use(storage);
    return next < static_cast<int>(trace_.operators.size()) && op(next).rounds;
  }
  void recompute(int op, int storage, bool first) override;
  void made(int, Key, bool) override {}
  void came(int storage) override { ready(storage); }
  void needs(std::int64_t bytes) override;
  void forgotten(Key) override {}
  void freed(int) override {}
  void may_be_made(int storage, int version) override {
    begin_walk();
    mark(storage, version, /*first=*/true);
  }
  void make_room(std::int64_t bytes) override { evict(bytes); }
  double distance(int storage) override;
  bool gives_up() override {
    fails_ = fails_ || executions() - now_ > kMostRecomputations * static_cast<std::int64_t>(deaths_.size());
    return fails_;
  }
  int needed_at(int storage) const;
  int needed_from(int storage) override;
  std::int64_t price_at(int when, const TracedOperator& op) const override;
  std::int64_t held() const override { return bytes_ + other_; }

  void go_through();
  void execute(const TracedOperator& its);
  void mark(int storage, int version, bool first);
  int next_use(int storage) const;
  // It has its values from here on.
  void ready(int storage) {
    if (way()) ready_[static_cast<std::size_t>(storage)] = executions();
  }
  void price_moves(StoredWay real);

  const GatheredUnits& units_;
  const std::vector<std::vector<int>>& deaths_;
  std::int64_t whole_budget_;
  DropRule rule_;
  ActivationPlan plan_;
  std::int64_t other_ = 0;
  bool fails_ = false;
  const ActivationPlan* best_ = nullptr;
  std::int64_t clock_ = 0;
  PlannedRun run_;                   // where something may be stored
  std::vector<std::int64_t> ready_;  // executions, by storage
};

std::vector<std::vector<int>> deaths_of(const OperatorTrace& trace) {
  std::vector<std::vector<int>> deaths(trace.operators.size() + 1);
  for (std::size_t i = 0; i < trace.storages.size(); ++i)
    if (const int at = trace.storages[i].death; at <= static_cast<int>(trace.operators.size()))
      deaths[static_cast<std::size_t>(at)].push_back(static_cast<int>(i));
  return deaths;
}

void Foretold::dropped(int storage, bool stored) {
  const auto at = static_cast<std::size_t>(executions());
  if (plan_.drops.size() <= at) plan_.drops.resize(at + 1);
  plan_.drops[at].push_back({storage, stored});
  if (stored) run_.stored.push_back({storage, ready_[static_cast<std::size_t>(storage)], executions()});
  if (!stored || !way().exact) may_be_made(storage, state(storage).version);
}

void Foretold::needs(std::int64_t bytes) {
  if (!way()) return;
  const auto at = static_cast<std::size_t>(executions());
  run_.needs.resize(std::max(run_.needs.size(), at + 1));
  run_.begins.resize(run_.needs.size(), clock_);
  run_.needs[at] = std::max(run_.needs[at], bytes);
}

// From the execution on in which it was dropped.
void Foretold::fetch(int storage) {
  const auto dropped = std::find_if(run_.stored.rbegin(), run_.stored.rend(),
                                    [&](const PlannedRun::Moved& each) { return each.storage == storage; });
  run_.fetched.push_back({storage, dropped->until + 1, executions() - 1});
}

void Foretold::recompute(int number, int, bool) {
  clock_ += op(number).nanoseconds;
  plan_.needed[static_cast<std::size_t>(number)] = 1;
  for (const int unit : op(number).units)
    if (!units_.has(unit, now_)) ++plan_.gathers;
  plan_.nanoseconds = so_far().nanoseconds;
  fails_ = fails_ || (best_ != nullptr && !better(plan_, *best_));
}

void Foretold::mark(int storage, int version, bool first) {
  const State& its = state(storage);
  if (!first && its.version == version && (its.present || (its.stored && way().exact))) return;
  const int from = walk_.from(storage, version);
  const auto& writers = trace_.storages[static_cast<std::size_t>(storage)].writers;
  for (int k = from; k < version; ++k) plan_.needed[static_cast<std::size_t>(writers[static_cast<std::size_t>(k)])] = 1;
  each_use(storage, from, version, [&](const StorageUse& use) { mark(use.storage, use.version, /*first=*/false); });
}

int Foretold::next_use(int number) const {
  const auto& readers = storage(number).readers;
  const auto at = std::upper_bound(readers.begin(), readers.end(), now_);
  return at == readers.end() ? static_cast<int>(trace_.operators.size()) : *at;
}

double Foretold::distance(int number) {
  if (!state(number).live) return needed_from(number) - now_ + 1;
  int next = next_use(number);
  if (rule_.for_results)
    for (const int reader : storage(number).readers) {
      if (reader > now_) break;
      for (const int result : op(reader).results)
        if (known(result) && state(result).live && !state(result).present && !state(result).stored)
          next = std::min(next, next_use(result));
    }
  return next - now_ + 1;
}

int Foretold::needed_at(int number) const {
  const int next = next_use(number);
  const bool never =
      next == static_cast<int>(trace_.operators.size()) && storage(number).death != TracedStorage::kLives;
  return never ? kAnyTime : next;
}

int Foretold::needed_from(int number) {
  int when = needed_at(number);
  for (const int each : missing_of(number)) when = std::min(when, needed_at(each));
  return when;
}

std::int64_t Foretold::price_at(int when, const TracedOperator& its) const {
  constexpr std::int64_t kOfAGather = 20;
  if (when == kAnyTime || std::ranges::all_of(its.units, [&](int unit) { return units_.has(unit, when); }))
    return its.nanoseconds;
  return rule_.gathers ? kOfAGather * its.nanoseconds : kImpossible;
}

void Foretold::execute(const TracedOperator& its) {
  std::vector<int> arguments;
  for (const StorageUse& use : its.uses)
    if (std::find(arguments.begin(), arguments.end(), use.storage) == arguments.end()) arguments.push_back(use.storage);
  bring(arguments);
  before_overwriting(its.uses);
  make_room(its.result_bytes + its.scratch_bytes);
  reach(its.result_bytes + its.scratch_bytes);
  ran();
  clock_ += its.nanoseconds;
  for (const int number : arguments)
    if (std::any_of(its.uses.begin(), its.uses.end(),
                    [&](const StorageUse& use) { return use.storage == number && use.written; })) {
      if (needed(number)) may_be_made(number, state(number).version);
      written(number);
      ready(number);
    }
  for (const int result : its.results) {
    born(result);
    ready(result);
  }
  unpin(arguments);
}

void Foretold::go_through() {
  const auto count = static_cast<int>(trace_.operators.size());
  for (now_ = 0; now_ < count && !fails_; ++now_) {
    for (const int number : deaths_[static_cast<std::size_t>(now_)]) die(number);
    const TracedOperator& its = op(now_);
    plan_.begins.push_back(executions());
    other_ = its.other_bytes;
    budget_ =
        its.backward ? whole_budget_ : static_cast<std::int64_t>(static_cast<double>(whole_budget_) * rule_.share);
    execute(its);
  }
  if (fails_) return;
  plan_.executions = executions();
  budget_ = whole_budget_;
  for (const int number : deaths_[static_cast<std::size_t>(count)]) die(number);
  std::vector<int> living;  // is there in the end, all together
  for (std::size_t i = 0; i < trace_.storages.size(); ++i)
    if (state(static_cast<int>(i)).live) living.push_back(static_cast<int>(i));
  bring(living);
  unpin(living);
}

void Foretold::price_moves(StoredWay real) {
  if (!real) return;
  const double one_way = real.nanoseconds_a_byte / 2;
  if (real.exact)
    overlap_moves(plan_, std::move(run_), trace_, whole_budget_, one_way);
  else
    plan_.nanoseconds += static_cast<std::int64_t>(static_cast<double>(plan_.moved) * one_way);
}

std::optional<ActivationPlan> Foretold::run(StoredWay real, const ActivationPlan* best) {
  best_ = best;
  go_through();
  if (fails_ || peak() > whole_budget_) return {};
  plan_.peak = peak();
  plan_.moved = so_far().moved;
  plan_.recomputations = so_far().again;
  plan_.drops.resize(static_cast<std::size_t>(executions()) + 1);
  price_moves(real);
  return std::move(plan_);
}

std::vector<DropRule> drop_rules(StoredWay way, bool gathers) {
  std::vector<DropRule> rules;
  for (const double share : kShares)
    for (const double exponent : kExponents)
      for (const double moves : kMoves) {
        rules.push_back({share, exponent, /*for_results=*/false, moves, gathers});
        if (!way || !way.exact) break;
      }
  return rules;
}

}  // namespace

std::int64_t unlimited_peak(const OperatorTrace& trace) {
  std::vector<std::int64_t> freed(trace.operators.size() + 1);  // before each operator
  for (const TracedStorage& each : trace.storages)
    if (each.death < static_cast<int>(freed.size())) freed[static_cast<std::size_t>(each.death)] += each.bytes;
  std::int64_t bytes = 0, peak = 0;
  for (std::size_t i = 0; i < trace.operators.size(); ++i) {
    const TracedOperator& its = trace.operators[i];
    bytes -= freed[i];
    peak = std::max(peak, bytes + its.other_bytes + its.result_bytes + its.scratch_bytes);
    for (const int result : its.results) bytes += trace.storages[static_cast<std::size_t>(result)].bytes;
  }
  return peak;
}

LargestNeed largest_need(const OperatorTrace& trace) {
  LargestNeed largest;
  for (std::size_t i = 0; i < trace.operators.size(); ++i) {
    const TracedOperator& its = trace.operators[i];
    std::int64_t bytes = its.other_bytes + its.result_bytes + its.scratch_bytes;
    for (auto use = its.uses.begin(); use != its.uses.end(); ++use)
      if (std::none_of(its.uses.begin(), use, [&](const StorageUse& each) { return each.storage == use->storage; }))
        bytes += trace.storages[static_cast<std::size_t>(use->storage)].bytes;
    if (bytes > largest.bytes) largest = {static_cast<int>(i), bytes};
  }
  return largest;
}

void level_times(OperatorTrace& trace) {
  std::unordered_map<std::uint64_t, std::vector<TracedOperator*>> groups;
  for (TracedOperator& each : trace.operators) groups[each.alike].push_back(&each);
  for (auto& [alike, group] : groups) {
    std::vector<std::int64_t> times;
    for (const TracedOperator* each : group) times.push_back(each->nanoseconds);
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    for (TracedOperator* each : group) each->nanoseconds = times[times.size() / 2];
  }
}

std::optional<ActivationPlan> activation_plan(const OperatorTrace& trace, std::int64_t budget, std::uint32_t seed,
                                              StoredWay way) {
  OperatorTrace copy = trace;
  const GatheredUnits units(trace);
  const auto deaths = deaths_of(trace);
  std::optional<ActivationPlan> best;
  DropRule its{};
  const auto try_rule = [&](const DropRule& rule) {
    auto plan = Foretold(copy, units, deaths, budget, rule, seed, way).run(way, best ? &*best : nullptr);
    if (!plan || (best && !better(*plan, *best))) return;
    best = std::move(plan);
    its = rule;
  };
  for (const bool gathers : {false, true}) {
    const std::vector<DropRule> rules = drop_rules(way, gathers);
    for (const DropRule& rule : rules) {
      try_rule(rule);
      if (best && best->recomputations == 0 && best->moved == 0) return best;
    }
    for (DropRule rule : rules) {  // near the best one
      if (best && rule.share != its.share && rule.exponent != its.exponent) continue;
      rule.for_results = true;
      try_rule(rule);
    }
    if (best || !units.any()) break;
  }
  return best;
}

std::int64_t least_budget(const OperatorTrace& trace, StoredWay way) {
  const std::int64_t all = unlimited_peak(trace);
  std::int64_t none = largest_need(trace).bytes, met = all;
  while (met - none > all / 100 + 1) {
    const std::int64_t middle = none + (met - none) / 2;
    if (const auto plan = activation_plan(trace, middle, 0, way))
      met = plan->peak;
    else
      none = middle;
  }
  return met;
}

}  // namespace zero

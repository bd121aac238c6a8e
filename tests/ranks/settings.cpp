#include "settings.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <ostream>
#include <set>
#include <variant>

#include "base/codec.h"
#include "covering.h"
#include "optimizers.h"

namespace zero::test {
namespace {

constexpr std::array<const char*, 6> kPresets{"ddp", "zero1", "zero2", "zero3", "hybrid", "hybrid-zero2"};

std::vector<Tier> tiers() {
  return on_devices() ? std::vector{Tier::device, Tier::host, Tier::disk} : std::vector{Tier::device, Tier::disk};
}

std::vector<Precision> all_precisions() {
  std::vector<Precision> all;
  for (const std::string_view name : precisions()) all.push_back(precision_named(name));
  return all;
}

std::vector<std::size_t> all_rules() {
  std::vector<std::size_t> rules(update_rules().size());
  std::iota(rules.begin(), rules.end(), 0);
  return rules;
}
// Of update_rules(): each number of values kept, each format of them, and each operation of whole tensors.
std::vector<std::size_t> rules_of_each_form() {
  return {0, 2, 3, 7, 10, 12, 13, 14, 15, 16, 19};
}
// AdamW in two formats, Muon, Adafactor, LAMB.
std::vector<std::size_t> rules_of_each_kind() {
  return {10, 14, 16, 18, 19};
}

// A column: its values, of which the first `tried` make room for those of other columns.
struct Column {
  std::size_t values;
  std::size_t tried;
  std::function<void(Setting& setting, std::size_t value)> choose;
};
using Table = std::vector<Column>;

template <class T>
Column column(T Setting::*field, const std::vector<T>& values, std::size_t tried = 1) {
  return {values.size(), tried, [=](Setting& setting, std::size_t value) { setting.*field = values[value]; }};
}

// Of these first columns some exclude values of each other.
constexpr std::ptrdiff_t kExclusive = 13;

// What an open column has is the first of its values.
Table table(const std::vector<Tier>& tiers, const std::vector<std::size_t>& rules,
            const std::vector<Precision>& precisions, const std::vector<Ranks>& ranks,
            const std::vector<std::int64_t>& budgets) {
  return {
      column(&Setting::preset, std::vector<std::string>(kPresets.begin(), kPresets.end()), kPresets.size()),
      column(&Setting::ranks, ranks, 2),
      column(&Setting::delays, {false, true}),
      column(&Setting::gradient, tiers, tiers.size()),
      column(&Setting::optimizer, tiers, tiers.size()),
      column(&Setting::parameter, tiers),
      column(&Setting::share, {1, 0.6, 0.2}),
      column(&Setting::gather_in, {Wire::native, Wire::fp8, Wire::int4, Wire::int4_differences, Wire::int4_hadamard}),
      column(&Setting::kept, {KeptCopy::none, KeptCopy::shard, KeptCopy::host}),
      column(&Setting::reduce_in,
             {Wire::native, Wire::int4, Wire::bf16, Wire::fp32, Wire::fp16, Wire::int8, Wire::int4_hadamard,
              Wire::bf16_codes},
             2),
      column(&Setting::feeds_back, {false, true}),
      column(&Setting::reproducible, {false, true}),
      column(&Setting::rule, rules),
      column(&Setting::budget, budgets),
      column(&Setting::precision, precisions),
      column(&Setting::accumulate, {1, 2, 3}),
      column(&Setting::groups, {false, true}),
      column(&Setting::overlap, {0, 2, 1})};
}

Table whole_table(const std::vector<Tier>& tiers, const std::vector<std::size_t>& rules) {
  return table(tiers, rules, all_precisions(),
               {{2},
                {1},
                {3},
                {.count = 4, .per_host = 2},
                {.count = 4, .shard = 2},
                {.count = 6, .shard = 3, .per_host = 3},
                {.count = 6, .shard = 2, .per_host = 3},
                {.count = 6, .shard = 2, .per_host = 2},
                {.count = 3, .shard = 1}},
               {0, 1, 5000, std::int64_t{1} << 40});
}

Table table_of_kinds() {
  return table(tiers(), rules_of_each_kind(),
               {Precision::fp32, Precision::bf16, Precision::fp16, Precision::bf16_kahan},
               {{2}, {1}, {3}, {.count = 4, .shard = 2}}, {0, 1});
}

Setting setting_of(const Table& table, const Row& row) {
  Setting setting;
  for (std::size_t i = 0; i < row.size(); ++i) table[i].choose(setting, row[i] == kOpen ? 0 : row[i]);
  return setting;
}

// What is open in columns that make room for others' values is tried; those that ask for room have their first one.
bool possible(const Table& table, Row row, std::size_t at = 0) {
  if (at == row.size()) return setting_of(table, row).valid();
  if (row[at] != kOpen) return possible(table, row, at + 1);
  for (std::size_t value = 0; value < table[at].tried; ++value) {
    row[at] = value;
    if (possible(table, row, at + 1)) return true;
  }
  return false;
}

std::vector<std::size_t> sizes_of(const Table& table) {
  std::vector<std::size_t> sizes;
  for (const Column& column : table) sizes.push_back(column.values);
  return sizes;
}

std::vector<Setting> covered(const Table& table) {
  std::vector<Setting> settings;
  std::map<Row, bool> known;
  const Possible may_be = [&](const Row& open) {
    const auto [found, added] = known.try_emplace(Row(open.begin(), open.begin() + kExclusive));
    if (added) found->second = possible(table, open);
    return found->second;
  };
  for (const Row& row : covering_rows(sizes_of(table), may_be, Ties::rarest))
    settings.push_back(setting_of(table, row));
  return settings;
}

// With a turn, later values come before earlier ones where they do as well, so that others meet in the rows.
Table turned(Table table, std::size_t turn) {
  for (Column& column : table)
    if (column.tried == 1)
      column.choose = [choose = column.choose, turn, values = column.values](Setting& setting, std::size_t value) {
        choose(setting, value == 0 ? 0 : 1 + (value - 1 + turn) % (values - 1));
      };
  return table;
}

std::vector<Setting> rows(const std::vector<Table>& tables) {
  std::vector<Setting> all;
  std::set<std::string> titles;
  for (std::size_t turn = 0; turn < (long_tests() ? 10u : 1u); ++turn)
    for (const Table& table : tables)
      for (const Setting& setting : covered(turned(table, turn)))
        if (titles.insert(setting.title()).second) all.push_back(setting);
  return all;
}

std::string in_title(State state, Tier tier) {
  if (tier == Tier::device) return "";
  const std::string what = state == State::optimizer ? "moments" : std::string(name(state)) + "s";
  return "With" + what + (tier == Tier::host ? "OnTheHost" : "OnDisk");
}

}  // namespace

const std::vector<Optimizer>& update_rules() {
  static const std::vector<Optimizer> all = [] {
    std::vector<Optimizer> list;
    for (const auto& some : {every_optimizer(), narrow_moments(), whole_optimizers(), our_own_options()})
      list.insert(list.end(), some.begin(), some.end());
    return list;
  }();
  return all;
}

bool updates_whole_tensors(const Optimizer& optimizer) {
  return std::holds_alternative<Muon>(optimizer) || std::holds_alternative<Lamb>(optimizer) ||
         std::holds_alternative<Adafactor>(optimizer);
}

bool on_devices() {
  return !device_of_rank().is_cpu();
}

Plan Setting::plan() const {
  const Plan rows = Plan::named(preset)
                        .offload(State::parameter, parameter)
                        .offload(State::gradient, gradient)
                        .offload(State::optimizer, optimizer, share)
                        .gather_in(gather_in)
                        .reduce_in(reduce_in);
  return (kept == KeptCopy::none ? rows : rows.keep_gathered(kept))
      .precision(precision)
      .accumulate(accumulate)
      .reproducible(reproducible)
      .delay_update(delays)
      .resident_budget(budget)
      .overlap(overlap)
      .error_feedback(feeds_back);
}

MeshShape Setting::mesh() const {
  return ranks.shard == 0 ? MeshShape(ranks.count) : MeshShape(ranks.count, {.shard = ranks.shard});
}

Job Setting::job() const {
  Job job{.plan = plan(),
          .ranks = ranks.count,
          .optimizer = update_rules()[rule],
          .options = {.clip = 1, .seed = 3},
          .shard = ranks.shard,
          .ranks_per_host = ranks.per_host};
  if (groups) {
    job.options.groups = {no_decay_on_norms_biases_embeddings()};
    job.options.clip = 0.5;
    job.options.schedule = [](std::int64_t step) { return 1.0 / static_cast<double>(1 + step); };
  }
  if (precision == Precision::fp16 || reduce_in == Wire::fp16) job.options.loss_scale = LossScale{.initial = 0x1p10};
  // Small operations, so that there are many of them, and several files; checks would take memory as the state grows.
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  job.options.disk = {.directories = {folder}, .checks = false, .block = 16384, .depth = 4};
  if (ranks.count == 2) job.options.disk.directories.push_back(folder);
  return job;
}

std::string Setting::title() const {
  std::string text = test::in_title(ranks.count, accumulate, precision);
  if (ranks.shard > 0) text += "InGroupsOf" + std::to_string(ranks.shard);
  if (ranks.per_host > 0) text += "On" + std::to_string(ranks.count / ranks.per_host) + "hosts";
  text +=
      test::in_title(preset) + "By" + std::to_string(rule) + test::in_title(std::string(name(update_rules()[rule])));
  text += in_title(State::parameter, parameter) + in_title(State::gradient, gradient);
  text += in_title(State::optimizer, optimizer);
  if (share < 1) text += "By" + std::to_string(static_cast<int>(100 * share)) + "Percent";
  if (delays) text += "Late";
  if (budget > 0) text += "In" + std::to_string(budget) + "bytes";
  if (overlap > 0) text += "Overlapping" + std::to_string(overlap);
  if (gather_in != Wire::native) text += "GatheredIn" + std::string(name(gather_in));
  if (kept != KeptCopy::none) text += "KeptOn" + std::string(name(kept));
  if (reduce_in != Wire::native) text += "ReducedIn" + std::string(name(reduce_in));
  if (feeds_back) text += "WithErrors";
  text += std::string(reproducible ? "Reproducible" : "") + (groups ? "InGroups" : "");
  std::erase(text, '-');  // of names; a test's has none
  return text;
}

std::vector<State> Setting::states_on(Tier tier) const {
  std::vector<State> states;
  for (const auto& [state, its] : {std::pair(State::parameter, parameter), std::pair(State::gradient, gradient),
                                   std::pair(State::optimizer, optimizer)})
    if (its == tier) states.push_back(state);
  return states;
}

std::vector<std::string> Setting::faults() const {
  if (const std::vector<std::string> of_plan = plan().faults(mesh()); !of_plan.empty()) return of_plan;
  const bool several_hosts = 0 < ranks.per_host && ranks.per_host < ranks.count;
  if (several_hosts && mesh().size(Axis::replica) == 1 && (kept == KeptCopy::shard || has_codec(reduce_in)))
    return {"on several hosts", "--shard-ranks " + std::to_string(ranks.per_host)};
  if (delays && on_devices() && gradient == Tier::device) return {"a delayed update reads gradients"};
  const bool elsewhere = states_on(Tier::device).size() < 3;
  if (updates_whole_tensors(update_rules()[rule]) && (delays || (on_devices() && elsewhere)))
    return {"optimizer " + std::string(name(update_rules()[rule])), "whole tensors"};
  return {};
}

// Sums that are reproducible are those of one rank, or of two, or of three, where parameters change as they travel. Of
// those that cross groups in codes the groups are what counts, and so they are for differences, which need a copy.
// Other sums have an order for plans that reduce each micro-batch, and one for those that do not.
Setting Setting::reference() const {
  const Plan here = plan().on(mesh());
  const Wire gathered = here[State::parameter].wire;
  const bool coded = gathered != Wire::native && here[State::parameter].rest.shard == Placement::sharded;
  const bool groups_count = coded && differs(gathered);
  const bool reduces_each =
      here[State::gradient].between.shard == Placement::sharded && accumulate > 1 && !reproducible;
  Setting other = *this;
  other.parameter = other.gradient = other.optimizer = Tier::device;
  other.share = 1;
  other.budget = 0;
  other.overlap = 0;
  other.kept = KeptCopy::none;
  other.ranks.per_host = 0;
  const bool coded_sums = has_codec(reduce_in) && mesh().size(Axis::replica) > 1;
  if (groups_count) other.kept = KeptCopy::host;
  if (!coded_sums && !groups_count) other.ranks.shard = 0;
  if (!coded_sums && has_codec(reduce_in)) other.reduce_in = Wire::native;
  if (!coded_sums) other.feeds_back = false;
  if (reproducible && !groups_count) {
    other.ranks = {!coded ? 1 : ranks.count % 2 == 0 ? 2 : ranks.count};
    other.accumulate = accumulate * ranks.count / other.ranks.count;
  }
  if (delays) other.gradient = other.optimizer = Tier::disk;
  other.preset = coded ? "zero3" : reduces_each ? "zero2" : delays ? "zero1" : "ddp";
  if (!coded) other.gather_in = Wire::native;
  // Blocks begin with slices, whose lengths are what all wires of a plan ask for.
  if (coded_sums && other.gather_in != gather_in) {
    other.preset = preset;
    other.gather_in = gather_in;
    if (delays) other.gradient = gradient, other.optimizer = optimizer;
    if (other == *this) other.budget = budget == 0 ? 1 : 0;
    return other;
  }
  if (other == *this && delays)
    other.gradient = on_devices() ? Tier::host : Tier::device;
  else if (other == *this && groups_count)
    other.kept = KeptCopy::shard;
  else if (other == *this)
    other.preset = coded ? "hybrid" : reduces_each ? "zero3" : "zero1";
  return other;
}

Setting Setting::elsewhere() const {
  const Setting same = reference();
  const std::vector<Tier> all = tiers();
  const auto next = [&](Tier tier, std::size_t turn) {
    const auto at = static_cast<std::size_t>(std::ranges::find(all, tier) - all.begin());
    return all[(at + turn) % all.size()];
  };
  const auto at = static_cast<std::size_t>(std::ranges::find(kPresets, preset) - kPresets.begin());
  for (std::size_t turn = 1; turn < kPresets.size() * all.size() * all.size() * all.size(); ++turn) {
    Setting other = *this;
    other.preset = kPresets[(at + turn) % kPresets.size()];
    other.optimizer = next(optimizer, turn / 2);
    other.gradient = next(gradient, turn / 3);
    other.parameter = next(parameter, turn / 5);
    other.share = other.optimizer == Tier::device || delays ? 1 : turn % 2 == 0 ? 0.5 : 1;
    if (other != *this && other.valid() && other.reference() == same) return other;
  }
  return same;
}

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.title();
}

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all =
      rows({whole_table({Tier::device}, on_devices() ? rules_of_each_form() : all_rules()),
            whole_table(tiers(), rules_of_each_form())});
  return all;
}

std::vector<Setting> settings_of_each_kind() {
  return rows({table_of_kinds()});
}

std::vector<Setting> refused_settings() {
  const Table table = table_of_kinds();
  std::vector<Setting> refused;
  for (const Row& row : covering_rows(sizes_of(table), everything_is_possible, Ties::rarest))
    if (const Setting setting = setting_of(table, row); !setting.valid()) refused.push_back(setting);
  return refused;
}

}  // namespace zero::test

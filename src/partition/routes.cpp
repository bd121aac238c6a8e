#include "partition/routes.h"

#include <algorithm>
#include <array>

#include "base/codec.h"
#include "base/collective_rules.h"
#include "base/error_blocks.h"
#include "base/sum_tree.h"
#include "base/text.h"
#include "partition/accumulation_order.h"
#include "partition/wire.h"

namespace zero {
namespace {

// Along which axes flat arrays are cut, the first ones first.
constexpr std::array kCuts{Axis::shard, Axis::replica};

// Along how many of them.
std::size_t cuts(const Placements& placements) {
  if (placements.shard != Placement::sharded) return 0;
  return placements.replica == Placement::sharded ? 2 : 1;
}

std::size_t cuts_at_rest(const Plan& plan, State state) {
  return cuts(plan[state].rest);
}

std::optional<Axis> divided_over(std::size_t cuts) {
  if (cuts == 0) return {};
  return cuts == 1 ? Axis::shard : Axis::data;
}

// A flat array as ranks of a mesh have it, cut along so many axes.
struct Flat {
  const MeshShape& mesh;
  std::int64_t length;
  int rank;

  Slice part(std::size_t cuts) const {
    if (cuts == 0) return {0, length};
    const std::int64_t count = length / mesh.size(cuts == 1 ? Axis::shard : Axis::data);
    return {count * (cuts == 1 ? mesh.at(Axis::shard, rank) : mesh.slice_of(rank)), count};
  }
  // The last cut first, so that slices land in order.
  Route gathered(std::size_t from, std::size_t to, Dtype dtype) const {
    Route route{part(from), part(std::min(from, to)), Wire::native, {}};
    for (std::size_t cut = from; cut > to; --cut)
      if (const Axis axis = kCuts[cut - 1]; mesh.size(axis) > 1)
        route.hops.push_back({Collective::all_gather, axis, part(cut), part(cut - 1), dtype});
    return route;
  }
  // What is added up once is sent in the dtype in which it was added from there on. Along one tree, by the leaves of
  // all ranks; or as each group does, where the order is nothing to the sum.
  Route reduced(Dtype dtype, const std::optional<Leaves>& leaves = {}, Wire across = Wire::native) const {
    Route route{part(0), part(kCuts.size()), Wire::native, {}};
    const Dtype wide = accumulation(dtype);
    for (std::size_t cut = 1; cut <= kCuts.size(); ++cut)
      if (const Axis axis = kCuts[cut - 1]; mesh.size(axis) > 1)
        route.hops.push_back({Collective::reduce_scatter, axis, part(cut - 1), part(cut),
                              route.hops.empty() ? dtype : wide, wide, leaves ? leaves_along(axis, *leaves) : Leaves{},
                              axis == Axis::replica ? across : Wire::native});
    return route;
  }
  // A group's ranks are neighbours; across, each brings what its group has added up.
  Leaves leaves_along(Axis axis, const Leaves& leaves) const {
    const GroupSum sum(leaves, mesh.size(Axis::data));
    const int group = mesh.size(Axis::shard);
    return axis == Axis::replica ? sum.of_groups(group) : sum.within(mesh.at(Axis::replica, rank), group);
  }
};

Flat flat_of(const UnitLayout& unit, int rank) {
  return {unit.mesh(), unit.length(), rank};
}

Shard held(const Placements& placements, const UnitLayout& unit, int rank) {
  return {flat_of(unit, rank).part(cuts(placements)), divided_over(cuts(placements))};
}

}  // namespace

int Hop::members() const {
  const std::int64_t whole = std::max(from.count, to.count), part = std::min(from.count, to.count);
  return part == 0 ? 1 : static_cast<int>(whole / part);
}

int Hop::brought() const {
  return rule_of(collective).sums ? GroupSum(leaves, members()).most() : 1;
}

int Hop::sums() const {
  if (!rule_of(collective).sums) return 1;
  return GroupSum(leaves, members()).sums();
}

bool Route::several() const {
  return std::ranges::any_of(hops, [](const Hop& hop) { return hop.brought() > 1 || hop.sums() > 1; });
}

bool Route::coded() const {
  return std::ranges::any_of(hops, [](const Hop& hop) { return hop.codec != Wire::native; });
}

std::int64_t Route::numbers_behind(std::size_t hop) const {
  return hops[hop].to.count * (hop + 1 < hops.size() ? hops[hop + 1].brought() : hops[hop].sums());
}

// Each hop's in memory of their own.
std::int64_t Route::numbers() const {
  if (!several()) return room().count;
  std::int64_t numbers = 0;
  for (std::size_t hop = 0; hop < hops.size(); ++hop) numbers += numbers_behind(hop);
  return numbers;
}

Slice Route::room() const {
  return hops.empty() || to.count > hops.front().to.count ? to : hops.front().to;
}

std::int64_t Route::bytes(const Hop& hop) const {
  if (hop.codec != Wire::native) return hop.brought() * bytes_of_codes(hop.codec, hop.to.count);
  if (rule_of(hop.collective).sums) return hop.to.count * size_of(hop.sent);
  return from.count == 0 ? 0 : hop.from.count / from.count * coded_bytes(from.count, hop.sent, codec);
}

std::int64_t Route::sum_bytes(const Hop& hop) {
  return hop.to.count * size_of(hop.kept);
}

Shard Routes::rest(State state, const UnitLayout& unit) const {
  return held((*plan_)[state].rest, unit, rank_);
}

Shard Routes::between(State state, const UnitLayout& unit) const {
  return held((*plan_)[state].between, unit, rank_);
}

bool Routes::keeps() const {
  return gathers() && (*plan_)[State::parameter].between != (*plan_)[State::parameter].rest;
}

bool Routes::keeps_whole() const {
  return keeps() && cuts((*plan_)[State::parameter].between) == 0;
}

bool Routes::keeps_for_group(const MeshShape& mesh) const {
  return keeps_whole() && mesh.size(Axis::replica) > 1 && cuts_at_rest(*plan_, State::parameter) == kCuts.size();
}

bool Routes::brings() const {
  return (*plan_)[State::parameter].tier != Tier::device;
}

bool Routes::gathers() const {
  return cuts_at_rest(*plan_, State::parameter) > 0;
}

Axis Routes::within() const {
  return divided_over(cuts_at_rest(*plan_, State::parameter)).value_or(Axis::data);
}

Wire Routes::codec() const {
  return gathers() ? (*plan_)[State::parameter].wire : Wire::native;
}

bool Routes::reduces_each() const {
  return cuts((*plan_)[State::gradient].between) > 0;
}

bool Routes::gathers_sum() const {
  return cuts_at_rest(*plan_, State::gradient) < kCuts.size();
}

bool Routes::updates_slices() const {
  return cuts_at_rest(*plan_, State::optimizer) > 0;
}

bool Routes::publishes() const {
  return cuts_at_rest(*plan_, State::optimizer) > cuts_at_rest(*plan_, State::parameter);
}

Route Routes::use(const UnitLayout& unit, bool exactly) const {
  const bool kept = keeps() && !exactly;
  const Placements& from = kept ? (*plan_)[State::parameter].between : (*plan_)[State::parameter].rest;
  Route route = flat_of(unit, rank_).gathered(cuts(from), 0, unit.dtype());
  if (!exactly && !kept) route.codec = wire_of(codec(), unit.dtype());
  return route;
}

Route Routes::keep(const UnitLayout& unit) const {
  const Row& row = (*plan_)[State::parameter];
  Route route = flat_of(unit, rank_).gathered(cuts(row.rest), cuts(row.between), unit.dtype());
  route.codec = wire_of(codec(), unit.dtype());
  return route;
}

Route Routes::reduce(const UnitLayout& unit, int micro) const {
  const AccumulationOrder order(*plan_, unit.mesh().size(Axis::data), rank_);
  const Wire wire = wire_of((*plan_)[State::gradient].wire, unit.dtype());
  return flat_of(unit, rank_)
      .reduced(plan_->reduction_dtype(unit.dtype()), order.reduced(micro), has_codec(wire) ? wire : Wire::native);
}

Route Routes::keep_in_common(const UnitLayout& unit) const {
  Route route = keep(unit);
  if (!route.hops.empty()) route.to = route.hops.front().to;
  if (route.hops.size() > 1) route.hops.resize(1);
  return route;
}

std::int64_t Routes::coded_sum_bytes(const UnitLayout& unit) const {
  std::int64_t bytes = 0;
  if (!has_codec((*plan_)[State::gradient].wire)) return bytes;
  for (int micro = 0; micro < (reduces_each() ? plan_->accumulate() : 1); ++micro)
    for (const Hop& hop : reduce(unit, micro).hops)
      if (hop.codec != Wire::native)
        bytes = std::max(bytes, CodedSum(hop.to.count, hop.kept, hop.codec, hop.members(), hop.brought()).bytes());
  return bytes;
}

std::vector<Routes::Errors> Routes::errors(const UnitLayout& unit) const {
  std::vector<Errors> all;
  if (!plan_->error_feedback() || unit.length() == 0) return all;
  for (const Hop& hop : reduce(unit).hops) {
    if (hop.codec == Wire::native) continue;
    std::int64_t at = 0;
    for (Slice of{hop.from.begin, hop.to.count}; of.begin < hop.from.end(); of.begin += of.count) {
      const bool own = of.begin == hop.to.begin;
      all.push_back({of, own ? std::nullopt : std::optional(at)});
      if (!own) at += bytes_of_codes<ErrorBlocks>(of.count);
    }
  }
  return all;
}

std::int64_t Routes::error_bytes(const UnitLayout& unit) const {
  const auto each = static_cast<std::int64_t>(errors(unit).size());
  return each == 0 ? 0 : (each - 1) * bytes_of_codes<ErrorBlocks>(errors(unit).front().of.count);
}

Route Routes::sum(const UnitLayout& unit) const {
  return flat_of(unit, rank_)
      .gathered(kCuts.size(), cuts_at_rest(*plan_, State::gradient), plan_->gradient_dtype(unit.dtype()));
}

Route Routes::publish(const UnitLayout& unit) const {
  return flat_of(unit, rank_)
      .gathered(cuts_at_rest(*plan_, State::optimizer), cuts_at_rest(*plan_, State::parameter), unit.dtype());
}

Route Routes::updated(const UnitLayout& unit, Dtype dtype) const {
  return flat_of(unit, rank_).gathered(cuts_at_rest(*plan_, State::optimizer), 0, dtype);
}

Route Routes::steps(const UnitLayout& unit, Dtype dtype) const {
  return flat_of(unit, rank_).reduced(dtype);
}

Route Routes::brought_steps(const UnitLayout& unit) const {
  return flat_of(unit, rank_)
      .gathered(kCuts.size(), cuts_at_rest(*plan_, State::optimizer), accumulation(unit.dtype()));
}

std::vector<Transition> Routes::of(const UnitLayout& unit) const {
  std::vector<Transition> all;
  if (unit.length() == 0) return all;
  const bool there = keeps_whole() && !unit.trainable();  // since the first step
  if (pages() && !there) all.push_back({When::use, State::parameter, use(unit)});
  if (keeps() && unit.trainable()) all.push_back({When::keep, State::parameter, keep(unit), /*joined=*/true});
  if (!unit.trainable() || unit.mesh().size(Axis::data) == 1) return all;
  all.push_back({reduces_each() ? When::gradient : When::sum, State::gradient, reduce(unit)});
  if (gathers_sum()) all.push_back({When::sum, State::gradient, sum(unit), /*joined=*/true});
  if (publishes()) all.push_back({When::update, State::parameter, publish(unit)});
  return all;
}

Dtype Routes::sent(const UnitLayout& unit, Dtype held) const {
  return reduces_each() || plan_->reduction() ? plan_->reduction_dtype(unit.dtype()) : held;
}

bool Routes::flat(const UnitLayout& unit, const Route& reduce, Dtype held, bool offloaded) const {
  return reduces_each() || sent(unit, held) != held || offloaded ||
         (!reduce.hops.empty() && reduce.hops.front().brought() > 1);
}

bool Routes::apart(const UnitLayout& unit, const Route& reduce, Dtype held, bool offloaded, bool added) const {
  const bool fits = !reduce.several() && reduce.room().count <= between(State::gradient, unit).count;
  return offloaded || added || held != accumulation(unit.dtype()) || !fits;
}

Route table_route(const MeshShape& mesh, Axis over, std::int64_t words, int rank) {
  return Flat{mesh, words * mesh.size(over), rank}.gathered(over == Axis::shard ? 1 : 2, 0, Dtype::i64);
}

std::string describe(const Row& row) {
  std::string words;
  for (const Placements& each : {row.rest, row.between})
    for (const Placement placement : {each.pipe, each.replica, each.shard, each.tensor})
      words += std::string(name(placement)) + " ";
  words += std::string(name(row.tier)) + " " + std::string(name(row.wire));
  return row.share == 1 ? words : words + " share " + shortest(row.share);
}

std::pair<std::string, std::string> places(const Row& row) {
  const auto word = [](const Placements& each) {
    return std::string(name(each.shard == Placement::replicated ? each.replica : each.shard));
  };
  return {word(row.between), word(row.rest)};
}

std::optional<Axis> divided_between(const Plan& plan, State state) {
  const Row& row = plan[state];
  return divided_over(cuts(state == State::parameter ? row.rest : row.between));
}

std::string missing_groups(const Plan& plan, const MeshShape& mesh, int ranks_per_host) {
  const int all = mesh.size(Axis::data);
  const bool kept = plan.kept() == KeptCopy::shard, coded = has_codec(plan[State::gradient].wire);
  const bool several_hosts = 0 < ranks_per_host && ranks_per_host < all;
  if (mesh.size(Axis::replica) > 1 || !several_hosts || !(kept || coded)) return {};
  return std::string(kept ? "what is kept of gathered parameters lies in a shard group"
                          : "gradients are coded between shard groups") +
         ", and all " + std::to_string(all) + " ranks are one, on several hosts";
}

}  // namespace zero

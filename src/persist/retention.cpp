#include "persist/retention.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "persist/folders.h"
#include "persist/gathered.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

void check(const Keep& keep) {
  if (keep.last < 0 || keep.every < 0)
    throw ConfigError("checkpoints to keep: neither the last " + std::to_string(keep.last) + " nor every " +
                      std::to_string(keep.every) + " may be negative");
}

bool kept_by(const Keep& keep, const std::vector<CheckpointPlace>& all, std::size_t i) {
  const bool recent = keep.last == 0 || static_cast<std::int64_t>(all.size() - i) <= keep.last;
  return recent || (keep.every > 0 && all[i].step % keep.every == 0);
}

// The newest of those that are known to verify, or do.
const CheckpointPlace* newest_good(Env& env, const std::vector<CheckpointPlace>& places,
                                   std::optional<std::int64_t> good, const ReadProgress& progress) {
  for (const CheckpointPlace& each : places)
    if (each.step == good) return &each;
  for (auto each = places.rbegin(); each != places.rend(); ++each)
    if (verify(env, each->folder, progress).empty()) return &*each;
  return nullptr;
}

}  // namespace

std::vector<CheckpointPlace> list_checkpoints(Env& env, const std::string& folder) {
  std::vector<CheckpointPlace> places;
  if (!env.exists(folder)) return places;
  for (const FolderEntry& entry : env.list(folder)) {
    const std::optional<std::int64_t> step = step_named(entry.name);
    if (!step || (!entry.folder && !entry.link)) continue;
    CheckpointPlace place{*step, folder + "/" + entry.name};
    place.unread = fault_of([&] { place.lineage = read_lineage(env, place.folder); });
    if (place.unread.empty() || env.exists(place.folder)) places.push_back(std::move(place));
  }
  const auto age = [](const CheckpointPlace& each) { return std::pair(each.lineage.number, each.step); };
  std::ranges::sort(places, {}, age);
  if (places.empty()) return places;
  for (CheckpointPlace& each : places) each.left = places.back().lineage.has_left(each.lineage.number);
  std::ranges::stable_partition(places, &CheckpointPlace::left);
  return places;
}

Lineage next_lineage(const std::vector<CheckpointPlace>& all, const std::optional<Origin>& origin) {
  Lineage lineage;
  for (const CheckpointPlace& each : all) lineage.number = std::max(lineage.number, each.lineage.number);
  const std::int64_t last = lineage.number++;
  const bool here = origin && std::ranges::any_of(all, [&](const CheckpointPlace& each) {
                      return each.step == origin->step && each.lineage == origin->lineage;
                    });
  if (here) lineage.left = origin->lineage.left;
  const std::int64_t first = here ? origin->lineage.number + 1 : 0;
  if (first <= last) lineage.left.emplace_back(first, last);
  std::erase_if(lineage.left, [&](const auto& range) {
    return std::ranges::none_of(all, [&](const CheckpointPlace& each) {
      return range.first <= each.lineage.number && each.lineage.number <= range.second;
    });
  });
  return lineage;
}

std::vector<std::int64_t> checkpoint_steps(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const CheckpointPlace& place : list_checkpoints(checkpoint_env(), folder)) steps.push_back(place.step);
  std::ranges::sort(steps);
  return steps;
}

std::optional<CheckpointPlace> newest_checkpoint(Env& env, const std::string& folder,
                                                 std::vector<std::string>* damaged) {
  std::vector<CheckpointPlace> places = list_checkpoints(env, folder);
  for (; !places.empty(); places.pop_back()) {
    const std::vector<CheckpointFault> faults = verify(env, places.back().folder);
    if (faults.empty()) return places.back();
    if (!damaged) continue;
    damaged->push_back(places.back().folder + ": " + describe(faults));
  }
  return {};
}

std::vector<CheckpointPlace> to_prune(Env& env, const std::string& folder, const Keep& keep,
                                      std::optional<std::int64_t> good, const ReadProgress& progress) {
  check(keep);
  const std::vector<CheckpointPlace> all = list_checkpoints(env, folder);
  std::vector<CheckpointPlace> kept, others;
  for (std::size_t i = 0; i < all.size(); ++i)
    (kept_by(keep, all, i) || all[i].step == good ? kept : others).push_back(all[i]);
  if (others.empty()) return {};
  for (const CheckpointPlace& each : all)
    if (!each.unread.empty())
      throw CheckpointError("it is not known which checkpoints of " + in_quotes(folder) +
                            " are the newest: " + each.unread);
  if (!newest_good(env, kept, good, progress)) {
    const CheckpointPlace* const last = newest_good(env, others, good, progress);
    if (!last) return {};
    others.erase(others.begin() + (last - others.data()));
  }
  std::ranges::sort(others, {}, &CheckpointPlace::step);
  return others;
}

std::vector<std::int64_t> prune(Env& env, const std::string& folder, const Keep& keep, std::optional<std::int64_t> good,
                                const ReadProgress& progress) {
  check(keep);
  if (!env.exists(folder)) return {};
  const Env::Lock lock = lock_checkpoints(env, folder);
  if (!lock)
    throw CheckpointError("no checkpoint of " + in_quotes(folder) + " is removed: a save into it is under way");
  std::vector<std::int64_t> steps;
  for (const CheckpointPlace& each : to_prune(env, folder, keep, good, progress)) {
    const std::string removed = each.folder + std::string(kRemoved);
    if (env.exists(removed)) remove_folder(env, removed);
    env.rename(each.folder, removed);
    remove_folder(env, removed);
    steps.push_back(each.step);
  }
  return steps;
}

}  // namespace zero

#include "persist/retention.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "persist/folders.h"
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
  for (const FolderEntry& entry : env.list(folder))
    if (const std::optional<std::int64_t> step = step_named(entry.name); step && entry.folder)
      places.push_back({*step, folder + "/" + entry.name});
  std::ranges::sort(places, {}, &CheckpointPlace::step);
  return places;
}

std::vector<std::int64_t> checkpoint_steps(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const CheckpointPlace& place : list_checkpoints(checkpoint_env(), folder)) steps.push_back(place.step);
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
  for (std::size_t i = 0; i < all.size(); ++i) (kept_by(keep, all, i) ? kept : others).push_back(all[i]);
  if (others.empty()) return {};
  if (!newest_good(env, kept, good, progress)) {
    const CheckpointPlace* const last = newest_good(env, others, good, progress);
    if (!last) return {};
    others.erase(others.begin() + (last - others.data()));
  }
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

// zero checkpoint list, and prune.
#include <algorithm>
#include <iostream>
#include <set>

#include "base/text.h"
#include "cli/commands/checkpoint_command.h"
#include "cli/report/format.h"
#include "cli/report/progress.h"
#include "cli/report/report.h"
#include "persist/checkpoint_list.h"
#include "persist/retention.h"

namespace cli {
namespace {

using models::Json;
using zero::FolderState;
using zero::ListedFolder;

bool is_leftover(const ListedFolder& folder) {
  return folder.state != FolderState::complete && folder.state != FolderState::damaged;
}

// "3 checkpoints, 1 of them damaged; 1 leftover of a save or a removal that was cut off, or is under way"
std::string summary(const std::vector<ListedFolder>& folders) {
  const std::int64_t leftovers = std::ranges::count_if(folders, is_leftover);
  const std::int64_t damaged = std::ranges::count(folders, FolderState::damaged, &ListedFolder::state);
  std::string text = counted(static_cast<std::int64_t>(folders.size()) - leftovers, "checkpoint");
  if (damaged > 0) text += ", " + with_separators(damaged) + " of them damaged";
  if (leftovers > 0)
    text +=
        "; " + counted(leftovers, "leftover") + " of what was cut off, or is under way, which the next save removes";
  return text;
}

void print_folders(std::ostream& out, const std::vector<ListedFolder>& folders) {
  Table table(3);
  if (!folders.empty()) table.add({"folder", "state", "plan", "step", "ranks", "bytes"});
  for (const ListedFolder& each : folders)
    table.add({each.name, std::string(name(each.state)) + (each.left ? ", left" : ""),
               each.plan.empty() ? "-" : zero::escaped(each.plan), std::to_string(each.step),
               each.ranks ? std::to_string(each.ranks) : "-", with_separators(each.bytes)});
  table.print(out);
  for (const ListedFolder& each : folders)
    if (!each.fault.empty()) out << '\n' << each.name << ": " << zero::escaped(each.fault) << '\n';
  out << (folders.empty() ? "" : "\n") << summary(folders) << ".\n";
  if (std::ranges::any_of(folders, &ListedFolder::left))
    out << "The run went back before those that are left: the newest does not go on from them.\n";
}

Json to_json(const ListedFolder& each) {
  const bool known = each.ranks > 0;
  return {{"step", each.step},
          {"name", each.name},
          {"state", name(each.state)},
          {"left", each.left},
          {"bytes", each.bytes},
          {"plan", known ? Json(each.plan) : Json()},
          {"ranks", known ? Json(each.ranks) : Json()},
          {"fault", each.fault.empty() ? Json() : Json(each.fault)}};
}

// What is verified before anything is removed is at most this, unless something is damaged.
std::int64_t bytes_of_newest(const std::vector<ListedFolder>& folders) {
  std::int64_t bytes = 0;
  for (const ListedFolder& each : folders)
    if (!is_leftover(each)) bytes = each.bytes;
  return bytes;
}

}  // namespace

int list_checkpoints(const CheckpointOptions& options) {
  check_output(options);
  require_folder(options);
  const std::vector<ListedFolder> folders = zero::list_folders(zero::posix_env(), options.path);
  if (std::ostream* const out = text_of(options)) print_folders(*out, folders);
  Json json = models::stamped(models::kCheckpointList);
  json["folder"] = options.path;
  json["checkpoints"] = Json::array();
  for (const ListedFolder& each : folders) json["checkpoints"].push_back(to_json(each));
  write_json(options, json);
  return 0;
}

int prune_checkpoints(const CheckpointOptions& options) {
  check_output(options);
  require_folder(options);
  zero::Env& env = zero::posix_env();
  const zero::Keep keep{options.keep, options.keep_every};
  const std::vector<ListedFolder> before = zero::list_folders(env, options.path);
  std::set<std::int64_t> removed;
  {
    ByteProgress progress("checkpoint prune", bytes_of_newest(before));
    progress.begin("verifying what stays");
    const auto told = [&](std::int64_t bytes) { progress.add(bytes); };
    if (options.dry_run) {
      for (const zero::CheckpointPlace& each : zero::to_prune(env, options.path, keep, {}, told))
        removed.insert(each.step);
    } else {
      for (const std::int64_t step : zero::prune(env, options.path, keep, {}, told)) removed.insert(step);
    }
  }
  Json json = models::stamped(models::kCheckpointPrune);
  json["folder"] = options.path;
  json["dry_run"] = options.dry_run;
  json["removed"] = json["kept"] = Json::array();
  std::int64_t bytes = 0;
  std::ostream* const out = text_of(options);
  for (const ListedFolder& each : before) {
    if (is_leftover(each)) continue;
    const bool gone = removed.contains(each.step);
    json[gone ? "removed" : "kept"].push_back(Json{{"step", each.step}, {"name", each.name}, {"bytes", each.bytes}});
    if (!gone) continue;
    bytes += each.bytes;
    if (out) *out << (options.dry_run ? "would remove " : "removed ") << each.name << '\n';
  }
  if (out)
    *out << counted(static_cast<std::int64_t>(removed.size()), "checkpoint") << ", " << with_separators(bytes)
         << " bytes" << (options.dry_run ? ", would be removed" : ", removed") << "; " << json["kept"].size()
         << (options.dry_run ? " would stay.\n" : " stay.\n");
  write_json(options, json);
  return 0;
}

}  // namespace cli

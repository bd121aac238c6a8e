#include "persist/checkpoint_list.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>

#include "base/text.h"
#include "persist/checkpoint_reader.h"
#include "persist/folders.h"
#include "persist/gathered.h"
#include "persist/retention.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr const char* kWanted = "give a checkpoint's folder, or the one that checkpoints were saved to";

FolderState state_of(std::string_view suffix) {
  if (suffix == kPartial) return FolderState::partial;
  if (suffix == kReplaced) return FolderState::replaced;
  if (suffix == kRemoved) return FolderState::removed;
  return FolderState::complete;
}

using Sizes = std::map<std::string, std::int64_t>;

Sizes sizes_in(Env& env, const std::string& path, std::string& fault) {
  Sizes sizes;
  std::vector<FolderEntry> entries;
  fault = fault_of([&] { entries = env.list(path); });
  for (const FolderEntry& entry : entries) {
    if (entry.folder) continue;
    try {
      sizes[entry.name] = env.open(path + "/" + entry.name)->size();
    } catch (const CheckpointError& error) {
      if (fault.empty()) fault = error.what();
    }
  }
  return sizes;
}

// Of the files, compared with the manifest.
std::string fault_in(const Manifest& manifest, const Sizes& sizes) {
  for (const StoredFile& file : manifest.files) {
    const auto found = sizes.find(file.name);
    if (found == sizes.end()) return file.name + " is not there";
    if (found->second != file.bytes)
      return file.name + " has " + std::to_string(found->second) + " bytes, " + std::to_string(file.bytes) +
             " were written";
  }
  return {};
}

ListedFolder look_at(Env& env, const std::string& path, const std::string& name, const FolderName& meaning) {
  ListedFolder result{.step = meaning.step, .name = name, .state = state_of(meaning.suffix)};
  std::string fault;
  const Sizes sizes = sizes_in(env, path, fault);
  for (const auto& [file, bytes] : sizes) result.bytes += bytes;
  if (result.state != FolderState::complete) return result;
  try {
    const Manifest manifest = Checkpoint::open(env, path).manifest();
    result.plan = manifest.plan;
    result.ranks = manifest.mesh.size();
    if (fault.empty()) fault = fault_in(manifest, sizes);
  } catch (const CheckpointError& error) {
    fault = error.what();
  }
  if (!fault.empty()) result.state = FolderState::damaged;
  result.fault = fault;
  return result;
}

std::string last_name(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

std::string leftover_of(const std::string& name) {
  const auto meaning = folder_named(name);
  if (!meaning || meaning->suffix.empty()) return {};
  if (meaning->suffix == kPartial) return ": it is what a save that was cut off left, or one that is under way";
  if (meaning->suffix == kReplaced) return ": it is a checkpoint that was to give way to another of its step";
  return ": it is what is left of a checkpoint that is removed";
}

}  // namespace

std::string_view name(FolderState state) {
  switch (state) {
    case FolderState::complete: return "complete";
    case FolderState::damaged: return "damaged";
    case FolderState::partial: return "partial";
    case FolderState::replaced: return "replaced";
    case FolderState::removed: return "removed";
  }
  return "?";
}

std::vector<ListedFolder> list_folders(Env& env, const std::string& folder) {
  std::vector<ListedFolder> all;
  for (const FolderEntry& entry : env.list(folder)) {
    const auto meaning = folder_named(entry.name);
    if ((!entry.folder && !entry.link) || !meaning) continue;
    const std::string path = folder + "/" + entry.name;
    ListedFolder found = look_at(env, path, entry.name, *meaning);
    if (env.exists(path)) all.push_back(std::move(found));
  }
  for (const CheckpointPlace& place : list_checkpoints(env, folder))
    for (ListedFolder& each : all)
      if (place.left && each.name == checkpoint_name(place.step)) each.left = true;
  std::ranges::sort(all, {}, [](const ListedFolder& each) { return std::tuple(each.step, each.name); });
  return all;
}

PathKind kind_of(Env& env, const std::string& path) {
  if (!env.exists(path)) throw ConfigError("there is no " + in_quotes(path), kWanted);
  std::vector<FolderEntry> entries;
  try {
    entries = env.list(path);
  } catch (const CheckpointError& error) {
    throw ConfigError(error.what(), kWanted);
  }
  const std::string name = last_name(path), leftover = leftover_of(name);
  const auto has = [&](auto&& fits) { return std::ranges::any_of(entries, fits); };
  const bool manifest = has([](const FolderEntry& entry) { return entry.name == kManifest && !entry.folder; });
  if (leftover.empty() && (manifest || step_named(name))) return PathKind::checkpoint;
  const auto belongs = [](const FolderEntry& entry) {
    return entry.folder || entry.link ? folder_named(entry.name).has_value() : entry.name == kLockFile;
  };
  if (leftover.empty() && has(belongs)) return PathKind::folder;
  throw ConfigError(in_quotes(path) + " is neither a checkpoint nor a folder of checkpoints" + leftover, kWanted);
}

std::vector<std::string> checkpoints_at(Env& env, const std::string& path) {
  if (kind_of(env, path) == PathKind::checkpoint) return {path};
  std::vector<std::string> folders;
  for (const CheckpointPlace& each : list_checkpoints(env, path)) folders.push_back(each.folder);
  if (folders.empty()) throw ConfigError("there is no checkpoint in " + in_quotes(path));
  return folders;
}

std::int64_t bytes_of(const Manifest& manifest) {
  std::int64_t bytes = 0;
  for (const StoredFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

}  // namespace zero

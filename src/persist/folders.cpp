#include "persist/folders.h"

#include <array>
#include <cstdio>
#include <filesystem>

#include "base/number.h"

namespace zero {
namespace {

constexpr std::string_view kPrefix = "step-";

// By what is written: ".." behind a link is not the folder that the link lies in.
std::string parent_of(const std::string& path) {
  std::filesystem::path whole = path;
  if (!whole.has_filename()) whole = whole.parent_path();  // "a/b/"
  const std::filesystem::path parent = whole.parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  std::array<char, 40> name{};
  std::snprintf(name.data(), name.size(), "step-%06lld", static_cast<long long>(step));
  return name.data();
}

std::optional<std::int64_t> step_named(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  std::string_view digits = name.substr(kPrefix.size());
  while (digits.size() > 1 && digits.front() == '0') digits.remove_prefix(1);
  const auto step = read_number<std::int64_t>(digits, 0, INT64_MAX);
  if (!step.fault.empty() || checkpoint_name(step.value) != name) return {};
  return step.value;
}

std::optional<FolderName> folder_named(std::string_view name) {
  for (const std::string_view suffix : {kPartial, kReplaced, kRemoved, std::string_view()}) {
    if (!name.ends_with(suffix)) continue;
    const auto step = step_named(name.substr(0, name.size() - suffix.size()));
    return step ? std::optional(FolderName{*step, suffix}) : std::nullopt;
  }
  return {};
}

Env::Lock lock_checkpoints(Env& env, const std::string& folder) {
  return env.lock(folder + "/" + std::string(kLockFile));
}

void create_lasting_folder(Env& env, const std::string& path) {
  if (env.exists(path)) return;
  const std::string parent = parent_of(path);
  if (parent != path) create_lasting_folder(env, parent);
  env.create_folder(path);
  env.sync_folder(parent);
}

std::vector<std::string> clean_locked(Env& env, const std::string& folder) {
  std::vector<std::string> removed;
  for (const FolderEntry& entry : env.list(folder)) {
    const std::string path = folder + "/" + entry.name;
    if (!entry.folder && entry.name.starts_with(kTokenPrefix)) {
      remove_if_there(env, path);
      removed.push_back(entry.name);
      continue;
    }
    const std::optional<FolderName> name = folder_named(entry.name);
    if ((!entry.folder && !entry.link) || !name || name->suffix.empty()) continue;
    if (name->suffix == kReplaced) {
      const std::string step = path.substr(0, path.size() - kReplaced.size());
      if (!env.exists(step)) {
        env.rename(path, step);
        env.sync_folder(folder);
        continue;
      }
    }
    remove_folder(env, path);
    removed.push_back(entry.name);
  }
  return removed;
}

std::vector<std::string> clean_partials(Env& env, const std::string& folder) {
  if (!env.exists(folder)) return {};
  const Env::Lock lock = lock_checkpoints(env, folder);
  return lock ? clean_locked(env, folder) : std::vector<std::string>();
}

}  // namespace zero

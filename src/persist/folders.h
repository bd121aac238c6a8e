// The folders of a run's checkpoints: `step-000123` is one, complete; what ends in `.partial` was or is being written,
// `.replaced` gave way to another of its step, `.removed` is being removed. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "persist/env.h"

namespace zero {

// "step-000123"
std::string checkpoint_name(std::int64_t step);
// Of just such a name.
std::optional<std::int64_t> step_named(std::string_view name);

inline constexpr std::string_view kPartial = ".partial", kReplaced = ".replaced", kRemoved = ".removed";

struct FolderName {
  std::int64_t step = 0;
  std::string_view suffix = {};  // one of these; empty: a checkpoint's
  bool operator==(const FolderName&) const = default;
};
// Nothing where it is no name of a checkpoint's, nor of a leftover's.
std::optional<FolderName> folder_named(std::string_view name);

inline constexpr std::string_view kLockFile = ".lock";
// Of a file by which ranks see that a folder is the same for all; it is there for that moment.
inline constexpr std::string_view kTokenPrefix = ".token-";

// Held by the save or the removal that is under way in a folder of checkpoints. It is lost with the process that holds
// it, whatever becomes of that, and so it tells leftovers from what is alive. Null while another has it.
Env::Lock lock_checkpoints(Env& env, const std::string& folder);

// Makes a folder, and those above it, and brings their names to the disk.
void create_lasting_folder(Env& env, const std::string& path);

// Removes what ended saves, removals and looks at whether ranks share the folder left, and gives back a checkpoint that
// was to be replaced and was not. Nothing while a save or a removal is under way. Returns the names of what it removed.
// For one rank, before training starts.
std::vector<std::string> clean_partials(Env& env, const std::string& folder);

// The same, by one who holds the lock.
std::vector<std::string> clean_locked(Env& env, const std::string& folder);

}  // namespace zero

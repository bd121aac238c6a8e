#include <string>
#include <vector>

#include "base/text.h"
#include "persist/checkpoint_reader.h"
#include "persist/retention.h"
#include "persist/weight_files.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

Restored told(const Checkpoint& checkpoint) {
  return {checkpoint.folder(), checkpoint.manifest().scalars.steps, checkpoint.manifest().user};
}

}  // namespace

Restored find_checkpoint(const std::string& path) {
  Env& env = posix_env();
  if (is_checkpoint(env, path)) return told(Checkpoint::open(env, path));
  std::vector<std::string> damaged;
  if (const auto newest = newest_checkpoint(env, path, &damaged)) return told(Checkpoint::open(env, newest->folder));
  throw CheckpointError("there is no checkpoint in " + in_quotes(path) + " that is whole" +
                            (damaged.empty() ? "" : ": " + joined(damaged, "; ")),
                        "give a folder that zero train saved to");
}

}  // namespace zero

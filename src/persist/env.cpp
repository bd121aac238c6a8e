#include "persist/env.h"

#include <atomic>

#include "base/text.h"
#include "zero/error.h"

namespace zero {
namespace {

std::atomic<Env*> replacement_env = nullptr;

}  // namespace

Env& checkpoint_env() {
  Env* const other = replacement_env;
  return other != nullptr ? *other : posix_env();
}

void replace_checkpoint_env(Env* env) {
  replacement_env = env;
}

void remove_folder(Env& env, const std::string& path) {
  if (env.is_link(path)) return env.remove(path);
  for (const FolderEntry& entry : env.list(path)) {
    const std::string inner = path + "/" + entry.name;
    if (entry.folder && !entry.link)
      remove_folder(env, inner);
    else
      env.remove(inner);
  }
  env.remove(path);
}

void remove_if_there(Env& env, const std::string& path) {
  try {
    env.remove(path);
  } catch (const CheckpointError&) {
    if (env.exists(path)) throw;
  }
}

std::string read_text(Env& env, const std::string& path, std::int64_t most) {
  const std::unique_ptr<ReadableFile> file = env.open(path);
  if (file->size() > most)
    throw CheckpointError(in_quotes(path) + " has " + std::to_string(file->size()) + " bytes, at most " +
                          std::to_string(most) + " are expected");
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  file->read(0, text.data(), file->size());
  return text;
}

void write_text(Env& env, const std::string& path, const std::string& text) {
  const std::unique_ptr<WritableFile> file = env.create(path);
  file->write(text.data(), static_cast<std::int64_t>(text.size()));
  file->sync();
  file->close();
}

}  // namespace zero

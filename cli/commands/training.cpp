#include <dlfcn.h>

#include <filesystem>

#include "cli/commands/commands.h"

namespace cli {
namespace {

// Beside the program, as built, or where it is installed.
std::filesystem::path library() {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path beside = folder / ZERO_TRAINING_FILE;
  return std::filesystem::exists(beside) ? beside : (folder / ZERO_TRAINING_INSTALLED).lexically_normal();
}

const Training& load() {
  const std::filesystem::path path = library();
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const entry = handle ? ::dlsym(handle, kTrainingEntry) : nullptr;
  if (!entry)
    throw zero::Error("cannot load what trains: " + std::string(::dlerror()),
                      "it needs the LibTorch that zero was built with, in " ZERO_LIBTORCH_FOLDER
                      " or in a folder that LD_LIBRARY_PATH names");
  return *reinterpret_cast<TrainingEntry*>(entry)();
}

}  // namespace

const Training& training() {
  static const Training& loaded = load();
  return loaded;
}

}  // namespace cli

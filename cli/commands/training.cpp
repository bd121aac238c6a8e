#include <dlfcn.h>

#include <cstdlib>
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

// Of the LibTorch that Torch_DIR names, as CMake reads it. What needs it finds it by name, once it is loaded.
bool load_libtorch() {
  const char* const folder = std::getenv("Torch_DIR");
  return folder && ::dlopen((std::string(folder) + "/../../../lib/libtorch.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
}

void* open(const std::filesystem::path& library) {
  return ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
}

const Training& load() {
  const std::filesystem::path path = library();
  void* handle = open(path);
  if (!handle && load_libtorch()) handle = open(path);
  void* const entry = handle ? ::dlsym(handle, kTrainingEntry) : nullptr;
  if (!entry)
    throw zero::Error("cannot load what trains: " + std::string(::dlerror()),
                      "it needs LibTorch " ZERO_LIBTORCH_VERSION ", which zero was built with, in " ZERO_LIBTORCH_FOLDER
                      ", where Torch_DIR says, or in a folder that LD_LIBRARY_PATH names");
  return *reinterpret_cast<TrainingEntry*>(entry)();
}

}  // namespace

const Training& training() {
  static const Training& loaded = load();
  return loaded;
}

}  // namespace cli

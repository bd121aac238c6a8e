#include "zero/world.h"

#include <cstdlib>
#include <new>

#include "comm/launcher_env.h"
#include "comm/torch/join.h"
#include "memory/torch/arena_allocator.h"
#include "zero/error.h"

namespace zero {

namespace {

void start_arena() try { use_arena(); } catch (const std::bad_alloc&) {
  throw ConfigError("there is no address space for the arena of activations",
                    "raise the limit of address space (ulimit -v), or set ZERO_ARENA=0");
}

}  // namespace

World init(const InitOptions& given) {
  const InitOptions options =
      override_options(given, [](const char* variable) -> const char* { return std::getenv(variable); });
  if (options.arena) start_arena();
  return join_world(options);
}

}  // namespace zero

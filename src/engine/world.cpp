#include "zero/world.h"

#include <cstdlib>

#include "comm/join.h"
#include "comm/launcher_env.h"
#include "tier/arena_allocator.h"

namespace zero {

World init(const InitOptions& given) {
  const InitOptions options =
      override_options(given, [](const char* variable) -> const char* { return std::getenv(variable); });
  if (options.arena) use_arena();
  return join_world(options);
}

}  // namespace zero

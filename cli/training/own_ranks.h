// What ranks of a job need of LibTorch: the store in which they meet.
#pragma once

#include <string>
#include <vector>

#include "cli/processes/spawn.h"

namespace cli {

// See ServeStore.
std::shared_ptr<void> serve_store(int socket, int port);

// `zero` itself, as the ranks of a job: `arguments` from argv[0] on.
Job own_ranks(std::vector<std::string> arguments, int ranks);

}  // namespace cli

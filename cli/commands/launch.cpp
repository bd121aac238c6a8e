#include "cli/commands/commands.h"
#include "cli/processes/spawn.h"

namespace cli {

int launch(const LaunchOptions& options) {
  Job job;
  job.program = options.command.front();
  job.arguments = options.command;
  job.ranks = options.ranks;
  job.output = options.plain ? Output::inherit : Output::prefixed;
  job.grace = std::chrono::milliseconds(static_cast<std::int64_t>(options.grace * 1000));
  job.restarts = options.restarts;
  job.serve = [](int socket, int port) { return training().serve_store(socket, port); };
  job.file_size_signal = options.file_size_signal;
  return run_ranks(job).code;
}

}  // namespace cli

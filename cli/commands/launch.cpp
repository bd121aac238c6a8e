#include "cli/commands/commands.h"
#include "cli/processes/spawn.h"

#include "base/number.h"
#include "base/text.h"
#include "cli/options/options.h"
#include "zero/error.h"

namespace cli {
namespace {

constexpr int kUsualPort = 29500, kMostPort = 65535;  // the former as torchrun has it

// An address of IPv6 has colons of its own: with a port it stands in brackets.
Nodes nodes_of(const LaunchOptions& options) {
  Nodes nodes{.count = options.nodes, .own = options.node_rank, .address = options.master, .port = kUsualPort};
  if (options.nodes == 1 && options.node_rank == 0 && options.master.empty()) return nodes;
  if (options.node_rank >= options.nodes)
    throw UsageError("--node-rank " + std::to_string(options.node_rank) + ": the nodes are 0 to " +
                     std::to_string(options.nodes - 1));
  if (options.master.empty())
    throw UsageError("--nodes " + std::to_string(options.nodes) + " needs --master, an address of the first of them");
  if (options.restarts > 0)
    throw UsageError("--restarts is of one node: a launcher does not hear of failures on others");
  const std::size_t colon = options.master.rfind(':'), bracket = options.master.rfind(']');
  const bool several = options.master.find(':') != colon && bracket == std::string::npos;
  if (colon == std::string::npos || several || (bracket != std::string::npos && colon < bracket)) return nodes;
  const auto port = zero::read_number<int>(options.master.substr(colon + 1), 1, kMostPort);
  if (!port.fault.empty() || colon == 0)
    throw UsageError("--master " + zero::shown(options.master) + " is not ADDRESS or ADDRESS:PORT");
  nodes.address =
      bracket == std::string::npos ? options.master.substr(0, colon) : options.master.substr(1, bracket - 1);
  nodes.port = port.value;
  return nodes;
}

}  // namespace

int launch(const LaunchOptions& options) {
  Job job;
  job.program = options.command.front();
  job.arguments = options.command;
  job.ranks = options.ranks;
  job.nodes = nodes_of(options);
  job.output = options.plain ? Output::inherit : Output::prefixed;
  job.grace = std::chrono::milliseconds(static_cast<std::int64_t>(options.grace * 1000));
  job.restarts = options.restarts;
  job.serve = [](int socket, int port) { return training().serve_store(socket, port); };
  job.file_size_signal = options.file_size_signal;
  return run_ranks(job).code;
}

}  // namespace cli

#include "cli/commands/commands.h"
#include "cli/processes/spawn.h"

#include "base/number.h"
#include "base/text.h"
#include "cli/options/options.h"
#include "zero/error.h"

namespace cli {
namespace {

constexpr int kUsualPort = 29500, kMostPort = 65535;  // the former as torchrun has it

// ADDRESS or ADDRESS:PORT; an address of IPv6, which has colons of its own, stands in brackets before a port.
void read_master(const std::string& text, Nodes& nodes) {
  const bool brackets = text.starts_with('[');
  const std::size_t colon = text.find(':');
  const std::size_t end = brackets ? text.find(']') : colon == text.rfind(':') ? colon : std::string::npos;
  nodes.address = brackets ? text.substr(1, end - 1) : text.substr(0, end);
  const std::string rest = end == std::string::npos ? "" : text.substr(end + (brackets ? 1 : 0));
  const auto port = zero::read_number<int>(rest.empty() ? std::to_string(kUsualPort) : rest.substr(1), 1, kMostPort);
  const bool odd = nodes.address.empty() || nodes.address.find_first_of("[]") != std::string::npos ||
                   (brackets && end == std::string::npos) || (!rest.empty() && rest.front() != ':');
  if (odd || !port.fault.empty())
    throw UsageError("--master " + zero::in_quotes(text) + " is not ADDRESS or ADDRESS:PORT");
  nodes.port = port.value;
}

Nodes nodes_of(const LaunchOptions& options) {
  Nodes nodes{.count = options.nodes, .own = options.node_rank};
  if (options.node_rank >= options.nodes)
    throw UsageError("--node-rank " + std::to_string(options.node_rank) + ": of " + std::to_string(options.nodes) +
                     (options.nodes == 1 ? " node" : " nodes") + " the last is " + std::to_string(options.nodes - 1));
  if (options.nodes > 1 && options.master.empty())
    throw UsageError("--nodes " + std::to_string(options.nodes) + " needs --master, an address of the first of them");
  if (options.nodes > 1 && options.restarts > 0)
    throw UsageError("--restarts is of one node: a launcher does not hear of failures on others");
  if (!options.master.empty()) read_master(options.master, nodes);
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

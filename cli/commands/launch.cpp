#include <cstdlib>
#include <filesystem>
#include <limits>
#include <sstream>

#include "base/number.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/options/host_list.h"
#include "cli/options/options.h"
#include "cli/processes/remote.h"
#include "cli/processes/spawn.h"
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

// The address is that of the first host, unless the user gave one.
std::string master_of(const LaunchOptions& options, const std::vector<ListedHost>& hosts) {
  if (!options.master.empty()) return options.master;
  if (hosts.size() > 1 && hosts.front().is_loopback())
    throw UsageError("--hosts begins with " + hosts.front().name +
                     ", here the loopback address, which is none for the others: --master says one");
  const std::string address = hosts.front().address();
  return address.find(':') == std::string::npos ? address : "[" + address + "]";
}

std::string own_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw zero::Error("cannot find the program zero: " + error.message());
  return path;
}

// To which what a shell on that host is to do is the next word.
std::vector<std::string> shell_on(const ListedHost& host, const std::string& agent) {
  if (host.is_this_one()) return {"sh", "-c"};
  std::istringstream text(agent);
  std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
  if (words.empty()) throw UsageError("--agent names no program that reaches other hosts");
  words.push_back(host.name);
  return words;
}

std::chrono::milliseconds grace_of(const LaunchOptions& options) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(options.grace * 1000));
}

std::string command_there(const LaunchOptions& options, const std::vector<ListedHost>& hosts, int host, int ranks,
                          const std::string& master) {
  std::vector<std::string> words{own_program(),
                                 "launch",
                                 "--orders=" + hosts[static_cast<std::size_t>(host)].name,
                                 "--ranks=" + std::to_string(ranks),
                                 "--grace=" + zero::shortest(options.grace),
                                 "--nodes=" + std::to_string(hosts.size()),
                                 "--node-rank=" + std::to_string(host),
                                 "--master=" + master};
  if (options.plain) words.push_back("--no-prefix");
  words.push_back("--");
  words.insert(words.end(), options.command.begin(), options.command.end());
  std::vector<std::string> quotes;
  for (const std::string& word : words) quotes.push_back(quoted(word));
  return "cd " + quoted(std::filesystem::current_path()) + " && exec " + zero::joined(quotes, " ");
}

// A process here for each of the hosts, which are to be ended only after their launchers had the time to.
Job job_over_hosts(const LaunchOptions& options) {
  constexpr std::chrono::seconds longer(5);
  if (options.nodes > 1 || options.node_rank > 0)
    throw UsageError("--hosts and --nodes: either starts the run's launchers");
  const std::vector<ListedHost> hosts = read_hosts(*options.hosts);
  const std::string master = master_of(options, hosts);
  Nodes checked;
  read_master(master, checked);
  const int ranks = ranks_on_each(hosts, options.ranks), count = static_cast<int>(hosts.size());
  Job job;
  job.program = "/proc/self/exe";
  job.arguments = {"zero", kReach, zero::joined(options.exported, ",")};
  for (int host = 0; host < count; ++host) {
    const ListedHost& there = hosts[static_cast<std::size_t>(host)];
    job.last_arguments.push_back(shell_on(there, options.agent));
    job.last_arguments.back().push_back(command_there(options, hosts, host, ranks, master));
    job.names.push_back("the launcher on " + there.name);
  }
  job.ranks = count;
  job.output = Output::lines;  // an agent may make what it writes to non-blocking, for ranks here too
  job.grace = grace_of(options) + longer;
  return job;
}

Job job_here(const LaunchOptions& options) {
  if (options.ranks == 0) throw UsageError("--ranks is required");
  Job job;
  job.program = options.command.front();
  job.arguments = options.command;
  job.ranks = options.ranks;
  job.nodes = nodes_of(options);
  job.output = options.plain ? Output::inherit : Output::prefixed;
  job.grace = grace_of(options);
  return job;
}

int start_count() {
  const char* const count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count ? zero::read_number<int>(count, 0, std::numeric_limits<int>::max()).value : 0;
}

}  // namespace

int launch(const LaunchOptions& options) {
  zero::Descriptor orders;
  if (!options.ordered.empty()) orders = take_orders();
  Job job = options.hosts ? job_over_hosts(options) : job_here(options);
  if (orders) {
    job.orders = orders.get();
    job.context = "on " + options.ordered + ": ";
    job.started_before = start_count();
  }
  job.restarts = options.restarts;
  job.serve = [](int socket, int port) { return training().serve_store(socket, port); };
  job.file_size_signal = options.file_size_signal;
  return run_ranks(job).code;
}

}  // namespace cli

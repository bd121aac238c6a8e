// zero train | compare | eval | plan | bench profile, disk | checkpoint | launch. Results go to standard output, all
// else to standard error. Exit codes: 0; 1 for what failed while it ran; 2 for what cannot work as it was given:
// options, variables, files; 3 for a run that was asked to stop, and saved. Of `launch`, the first failing rank's.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <iostream>
#include <new>
#include <span>
#include <system_error>

#include "cli/commands/checkpoint_command.h"
#include "cli/commands/commands.h"
#include "cli/commands/disk_bench.h"
#include "cli/commands/export_checkpoint.h"
#include "cli/commands/plan_command.h"
#include "cli/complain.h"
#include "cli/exit_codes.h"
#include "cli/options/checks.h"
#include "cli/options/device_option.h"
#include "cli/options/help.h"
#include "cli/options/validators.h"
#include "cli/processes/remote.h"
#include "planner/quantity.h"

namespace {

using cli::kFailed;
using cli::kUsage;

void add_launch_options(CLI::App& command, cli::LaunchOptions& options) {
  cli::add_number(command, "-n,--ranks", options.ranks, "Ranks to start, on each host [as many as --hosts says]", 1,
                  cli::kMostRanks)
      ->default_str("")
      ->group("Ranks");
  cli::add_number(command, "--grace", options.grace, "Seconds from SIGTERM to SIGKILL for ranks that are to end", 0,
                  1e6)
      ->group("Ranks");
  cli::add_restarts(command, options.restarts, "Ranks");
  CLI::Option* const hosts =
      command
          .add_option(
              "--hosts", options.hosts,
              "Hosts of the run, between commas (a,b or a:4,b:4), or a file of them (lines: a, or a slots=4); a "
              "launcher is started on each")
          ->type_name("HOST,...|FILE")
          ->group("Hosts");
  command.add_option("--agent", options.agent, "What runs a command on another host, given its name and the command")
      ->type_name("COMMAND")
      ->needs(hosts)
      ->capture_default_str()
      ->group("Hosts");
  command
      .add_option("--export", options.exported,
                  "Variables that go there, beside ZERO_*, OMP_*, NCCL_* and the like, PATH and LD_LIBRARY_PATH")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs(hosts)
      ->type_name("NAME,...")
      ->group("Hosts");
  command.add_option("--orders", options.ordered)->group("");
  cli::add_number(command, "--nodes", options.nodes,
                  "Or, without --hosts: hosts of the run, on each of which this command is given", 1, cli::kMostRanks)
      ->group("Hosts");
  cli::add_number(command, "--node-rank", options.node_rank, "Which of them this one is", 0, cli::kMostRanks - 1)
      ->group("Hosts");
  command.add_option("--master", options.master, "An address of the first of them that all reach, and a port [29500]")
      ->type_name("ADDRESS[:PORT]")
      ->group("Hosts");
  command.add_flag("--no-prefix", options.plain, "Output as it comes, without [rank]")->group("Output");
  command.set_help_flag("-h,--help", "Print this help")->group("Output");
  command.prefix_command();
  command.footer("PROGRAM and its arguments follow the options, after -- where that helps.");
}

CLI::App* add_profile(CLI::App& bench, cli::ProfileOptions& options) {
  CLI::App* const command = bench.add_subcommand("profile", "Measure what this machine's ranks can do, for zero plan");
  const std::string group = "Machine";
  CLI::Option* const show = cli::add_path(*command, "--show", options.show,
                                          "Measure nothing: print a100, h100, h200 or a profile's file as JSON")
                                ->group("Output");
  cli::add_number(*command, "-n,--ranks", options.ranks,
                  "Ranks that work at once [4, or one for each device of the kind]", 1, cli::kMostRanks)
      ->group(group);
  cli::add_read(*command, "--device", options.device, "What they compute on: cpu, cuda (a GPU a rank) or cuda:1",
                cli::device_named, "DEVICE", group)
      ->capture_default_str();
  cli::add_choices(*command, "--precisions", options.precisions, "Of what is computed", {"fp32", "bf16", "fp16", "fp8"})
      ->group(group);
  cli::add_number(*command, "--threads", options.threads, "Threads of an operator", 1, cli::kMostThreads)->group(group);
  cli::add_read(*command, "--network", options.network,
                "Between hosts, for a rank: 100Gbit, 12.5GB/s; measured without it where ranks are on several",
                planner::bandwidth_of, "SPEED", group)
      ->capture_default_str();
  command
      ->add_option("--disk", options.disk, "Measure states on disk in these folders, between commas; nothing is left")
      ->delimiter(',')
      ->type_name("DIR")
      ->group(group);
  cli::add_path(*command, "--out", options.out,
                "File to write [profile.json in the user's cache folder]; - is standard output alone")
      ->group("Output");
  for (const char* other : {"--ranks", "--device", "--precisions", "--threads", "--network", "--disk", "--out"})
    show->excludes(command->get_option(other));
  command->set_help_flag("-h,--help", "Print this help")->group("Output");
  command->callback([command, &options] { options.given = cli::given_to(*command); });
  return command;
}

// The words before the first "--" of `zero launch`, where CLI11 would look for options of `zero` itself.
std::span<char*> options_of(std::span<char*> words) {
  if (words.size() < 2 || std::string_view(words[1]) != "launch") return words;
  const auto end = std::ranges::find(words, std::string_view("--"));
  return words.first(static_cast<std::size_t>(end - words.begin()));
}

// `rest`: from the first "--" on, which is the program's where the program came before it.
std::vector<std::string> program_of(const CLI::App& command, std::span<char*> rest) {
  std::vector<std::string> words = command.remaining();
  if (words.empty() && !rest.empty()) rest = rest.subspan(1);
  words.insert(words.end(), rest.begin(), rest.end());
  if (words.empty()) throw cli::UsageError("launch: no program to start");
  if (command.remaining_size() > 0 && words.front().starts_with("-"))
    throw cli::UsageError("launch: " + cli::unknown_option(command, words.front()));
  return words;
}

std::string command_line(int argc, char** argv) {
  std::string line = "zero";
  for (int i = 1; i < argc; ++i) line += " " + cli::quoted(argv[i]);
  return line;
}

// "zero plan", as far as the first words are commands.
std::string command_of(int argc, char** argv) {
  constexpr std::array<std::string_view, 15> commands{"train",   "compare", "eval",       "plan",   "bench",
                                                      "profile", "launch",  "checkpoint", "list",   "show",
                                                      "verify",  "diff",    "prune",      "export", "disk"};
  std::string text = "zero";
  for (int i = 1; i < argc && std::ranges::count(commands, argv[i]) > 0; ++i) text += std::string(" ") + argv[i];
  return text;
}

// A descriptor that is closed would be given to the next file that is opened. One that cannot be read where it is to be
// written, and the other way round, fails like one that is closed.
void occupy_standard_files() {
  for (const int fd : {0, 1, 2})
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

// What trains, loaded when nothing can be found wrong without it.
const cli::Training& checked(const cli::RunOptions& options, int usual_ranks) {
  cli::check_settings(options, cli::launched() ? 0 : options.ranks ? options.ranks : usual_ranks);
  return cli::training();
}
template <class Options>
const cli::Training& checked(const Options& options) {
  cli::check_settings(options);
  return cli::training();
}

int run(int argc, char** argv) {
  occupy_standard_files();
  // A file that grows too large is then an error of the write, which is reported.
  const auto file_size_signal = std::signal(SIGXFSZ, SIG_IGN);
  if (argc > 3 && argv[1] == std::string_view(cli::kReach))
    return cli::reach({argv + 3, argv + argc}, argv[2], file_size_signal);
  CLI::App app("Trains language models under the stages of ZeRO.", "zero");
  app.require_subcommand(0, 1);
  app.formatter(cli::help_format());
  app.set_version_flag("--version", "zero " ZERO_VERSION, "Print the version");
  cli::RunOptions to_train, to_compare;
  cli::PlanOptions to_plan;
  cli::ProfileOptions to_profile;
  cli::DiskBenchOptions to_bench_disk;
  cli::EvalOptions to_evaluate;
  cli::ExportOptions to_export;
  cli::LaunchOptions to_launch;
  cli::CheckpointOptions to_look;
  CLI::App* const train = app.add_subcommand("train", "Train a model under one plan");
  CLI::App* const compare = app.add_subcommand("compare", "Train under several plans and compare cost and losses");
  CLI::App* const eval = app.add_subcommand("eval", "The mean loss of a model with weights over a text");
  CLI::App* const plan = app.add_subcommand("plan", "Predict memory, wire and time of every plan, and choose one");
  CLI::App* const bench = app.add_subcommand("bench", "Measure this machine");
  CLI::App* const profile = add_profile(*bench->require_subcommand(1), to_profile);
  CLI::App* const disk = cli::add_disk_bench(*bench, to_bench_disk);
  CLI::App* const exported = cli::add_export(*cli::add_checkpoint_command(app, to_look), to_export);
  CLI::App* const launch = app.add_subcommand("launch", "Run a program as N ranks");
  cli::add_train_options(*train, to_train);
  cli::add_compare_options(*compare, to_compare);
  cli::add_eval_options(*eval, to_evaluate);
  cli::add_plan_options(*plan, to_plan);
  add_launch_options(*launch, to_launch);
  const std::span<char*> all(argv, static_cast<std::size_t>(argc)), words = options_of(all);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const std::string unknown = cli::unknown_word(app);
    throw cli::UsageError(unknown.empty() ? error.what() : unknown);
  }
  for (cli::RunOptions* options : {&to_train, &to_compare})
    if (options->command.empty()) options->command = command_line(argc, argv);
  to_plan.command = to_evaluate.command = command_line(argc, argv);
  if (train->parsed()) return checked(to_train, 1).train(to_train);
  if (compare->parsed()) return checked(to_compare, 4).compare(to_compare);
  if (eval->parsed()) return checked(to_evaluate).evaluate(to_evaluate);
  if (exported->parsed()) return cli::export_checkpoint(to_export);
  if (plan->parsed()) return cli::plan(to_plan);
  if (profile->count("--show") > 0) return cli::show_profile(to_profile.show);
  if (profile->parsed()) return checked(to_profile).profile(to_profile);
  if (disk->parsed()) return cli::bench_disk(to_bench_disk);
  if (to_look.run) return to_look.run(to_look);
  if (!launch->parsed())
    throw cli::UsageError("give a command: train, compare, eval, plan, bench, checkpoint or launch");
  to_launch.command = program_of(*launch, all.subspan(words.size()));
  to_launch.file_size_signal = file_size_signal;
  return cli::launch(to_launch);
}

// Results that could not be written are a failure.
int written(int code) {
  if (!std::cout.flush()) throw zero::Error("cannot write to standard output");
  return code;
}

}  // namespace

int main(int argc, char** argv) try { return written(run(argc, argv)); } catch (const cli::UsageError& error) {
  const std::string text = error.what();
  cli::complain(text + (text.ends_with('?') ? " See " : "; see ") + command_of(argc, argv) + " --help");
  return kUsage;
} catch (const zero::ConfigError& error) {
  cli::complain(error.what());
  return kUsage;
} catch (const std::bad_alloc&) {
  cli::complain("out of memory");
  return kFailed;
} catch (const std::system_error& error) {  // of a thread that cannot be started, for example
  cli::complain("the system refuses what the program asks of it: " + error.code().message() +
                " (see its limits: ulimit -a)");
  return kFailed;
} catch (const std::exception& error) {
  cli::complain(error.what());
  return kFailed;
}

// zero train | compare | plan | bench profile | launch. Results go to standard output, all else to standard error. Exit
// codes: 0, 1 for a failure, 2 for wrong usage; of `launch`, the first failing rank's.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>

#include "commands.h"
#include "plan_command.h"
#include "planner/quantity.h"
#include "validators.h"

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

void add_launch_options(CLI::App& command, cli::LaunchOptions& options) {
  command.add_option("-n,--ranks", options.ranks, "Ranks to start")
      ->required()
      ->check(CLI::Range(1, 1 << 20))
      ->group("Ranks");
  command.add_option("--grace", options.grace, "Seconds from SIGTERM to SIGKILL for ranks that are to end")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->group("Ranks");
  command.add_flag("--no-prefix", options.plain, "Output as it comes, without [rank]")->group("Output");
  command.set_help_flag("-h,--help", "Print this help")->group("Output");
  command.prefix_command();
  command.footer("PROGRAM and its arguments follow the options.");
}

CLI::App* add_profile(CLI::App& bench, cli::ProfileOptions& options) {
  CLI::App* const command = bench.add_subcommand("profile", "Measure what this machine's ranks can do, for zero plan");
  CLI::Option* const show =
      command->add_option("--show", options.show, "Measure nothing: print a100, h100, h200 or a profile's file as JSON")
          ->group("Output");
  command->add_option("-n,--ranks", options.ranks, "Ranks that work at once")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group("Machine");
  command->add_option("--precisions", options.precisions, "Of what is computed")
      ->delimiter(',')
      ->check(CLI::IsMember({"fp32", "bf16", "fp16", "fp8"}))
      ->capture_default_str()
      ->group("Machine");
  command->add_option("--threads", options.threads, "Threads of an operator")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str()
      ->group("Machine");
  command->add_option("--network", options.network, "Between hosts, for a rank, taken as given: 100Gbit, 12.5GB/s")
      ->check(cli::read_by(planner::bandwidth_of))
      ->capture_default_str()
      ->group("Machine");
  command->add_option("--out", options.out, "File to write [profile.json in the user's cache folder]")->group("Output");
  for (const char* other : {"--ranks", "--precisions", "--threads", "--network", "--out"})
    show->excludes(command->get_option(other));
  command->set_help_flag("-h,--help", "Print this help")->group("Output");
  return command;
}

std::vector<std::string> program_of(const CLI::App& command) {
  std::vector<std::string> words = command.remaining();
  if (!words.empty() && words.front() == "--") words.erase(words.begin());
  if (words.empty()) throw cli::UsageError("launch: no program to start");
  if (words.front().starts_with("-")) throw cli::UsageError("launch: unknown option '" + words.front() + "'");
  return words;
}

std::string command_line(int argc, char** argv) {
  std::string line = "zero";
  for (int i = 1; i < argc; ++i) line += std::string(" ") + argv[i];
  return line;
}

// "zero plan", as far as the first words are commands.
std::string command_of(int argc, char** argv) {
  constexpr std::array<std::string_view, 6> commands{"train", "compare", "plan", "bench", "profile", "launch"};
  std::string text = "zero";
  for (int i = 1; i < argc && std::ranges::count(commands, argv[i]) > 0; ++i) text += std::string(" ") + argv[i];
  return text;
}

void complain(const std::string& text) {
  const char* rank = std::getenv("RANK");
  std::cerr << ("zero: " + (rank ? "rank " + std::string(rank) + ": " : "") + text + "\n") << std::flush;
}

int run(int argc, char** argv) {
  CLI::App app("Trains language models under the stages of ZeRO.", "zero");
  app.require_subcommand(0, 1);
  cli::RunOptions to_train, to_compare;
  cli::PlanOptions to_plan;
  cli::ProfileOptions to_profile;
  cli::LaunchOptions to_launch;
  CLI::App* const train = app.add_subcommand("train", "Train a model under one plan");
  CLI::App* const compare = app.add_subcommand("compare", "Train under several plans and compare cost and losses");
  CLI::App* const plan = app.add_subcommand("plan", "Predict memory, wire and time of every plan, and choose one");
  CLI::App* const bench = app.add_subcommand("bench", "Measure this machine");
  CLI::App* const profile = add_profile(*bench->require_subcommand(1), to_profile);
  CLI::App* const launch = app.add_subcommand("launch", "Run a program as N ranks");
  cli::add_train_options(*train, to_train);
  cli::add_compare_options(*compare, to_compare);
  cli::add_plan_options(*plan, to_plan);
  add_launch_options(*launch, to_launch);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    throw cli::UsageError(error.what());
  }
  to_train.command = to_compare.command = to_plan.command = command_line(argc, argv);
  if (train->parsed()) return cli::training().train(to_train);
  if (compare->parsed()) return cli::training().compare(to_compare);
  if (plan->parsed()) return cli::plan(to_plan);
  if (profile->count("--show") > 0) return cli::show_profile(to_profile.show);
  if (profile->parsed()) return cli::training().profile(to_profile);
  if (!launch->parsed()) throw cli::UsageError("give a command: train, compare, plan, bench or launch");
  to_launch.command = program_of(*launch);
  return cli::launch(to_launch);
}

// Results that could not be written are a failure.
int checked(int code) {
  if (!std::cout.flush()) throw zero::Error("cannot write to standard output");
  return code;
}

}  // namespace

int main(int argc, char** argv) try { return checked(run(argc, argv)); } catch (const cli::UsageError& error) {
  complain(std::string(error.what()) + "; see " + command_of(argc, argv) + " --help");
  return kUsage;
} catch (const std::exception& error) {
  complain(error.what());
  return kFailed;
}

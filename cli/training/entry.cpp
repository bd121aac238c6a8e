#include "cli/commands/commands.h"
#include "cli/training/own_ranks.h"

extern "C" const cli::Training* zero_training();

const cli::Training* zero_training() {
  static constexpr cli::Training commands{cli::train, cli::compare, cli::profile, cli::evaluate, cli::serve_store};
  return &commands;
}

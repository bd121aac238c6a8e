#include "commands.h"

extern "C" const cli::Training* zero_training();

const cli::Training* zero_training() {
  static constexpr cli::Training commands{cli::train, cli::compare, cli::launch, cli::profile};
  return &commands;
}

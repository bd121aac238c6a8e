// A launcher on another host. A process here starts it, by ssh or the like, and talks to it over its standard input:
// the variables of the run, then a byte for each signal. Where that input ends, whoever wrote it has gone, and the
// launcher there ends its ranks: nothing stays, whichever end dies.
#pragma once

#include <string>
#include <vector>

#include "base/system_files.h"

namespace cli {

// `zero reach NAME,... COMMAND...` is a call of reach().
inline constexpr const char* kReach = "reach";

// Runs `command`, tells it the variables of the run and those that `exported` names, between commas, and passes on the
// signals that this process gets. `file_size_signal`: what it does about SIGXFSZ. Returns its exit code, or 128 + n
// after signal n. Throws zero::Error when it cannot be started.
int reach(const std::vector<std::string>& command, const std::string& exported, void (*file_size_signal)(int));

// In what was started so: reads the variables, and gives standard input to nobody else. Returns where signals come
// from. Throws zero::ConfigError when standard input is none that reach() writes.
zero::Descriptor take_orders();

// As a shell reads it.
std::string quoted(const std::string& word);

}  // namespace cli

// Where a command reads and writes: what it writes destroys nothing that it reads or has written.
#pragma once

#include <string>
#include <vector>

#include "cli/options/eval_options.h"
#include "cli/options/options.h"

namespace cli {

struct Place {
  enum class Use { reads, writes, writes_into };  // writes_into: files of its own, in a folder
  const char* option;
  std::string path;  // empty: not given
  Use use;
};

// Throws UsageError, naming both options, where two of them are one file, of which at least one is written, or standard
// output, and where a file is written into a folder that is read.
void check_apart(const std::vector<Place>& places);

std::vector<Place> places_of(const RunOptions& options);
std::vector<Place> places_of(const EvalOptions& options);

}  // namespace cli

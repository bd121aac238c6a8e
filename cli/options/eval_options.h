// What `zero eval` is asked to do.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}

namespace cli {

struct EvalOptions {
  std::string model;  // a folder with weights, or a checkpoint
  std::string data;
  int tokens = 0;  // bits of a token in a token file; 0: by the file's name
  std::int64_t seq = 128;
  std::int64_t batch = 4;
  int threads = 1;
  std::string device;  // empty: a GPU where there is one
  std::string json;    // "-" is standard output
  std::string command;
};

void add_eval_options(CLI::App& command, EvalOptions& options);

}  // namespace cli

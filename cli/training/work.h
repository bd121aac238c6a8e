// The model's sizes and the text, as the options name them.
#pragma once

#include "models/data.h"
#include "models/llama_config.h"
#include "options.h"

namespace cli {

struct Work {
  models::LlamaConfig config;
  models::Corpus corpus;
};

// Throws UsageError for a name that is neither a preset nor a path, zero::ConfigError for a file or folder
// that is missing or cannot be trained on as asked.
Work load(const RunOptions& options);

// Throws UsageError where the tokens of a run on so many ranks are more than 64 bits count.
void check_count(const RunOptions& options, int ranks);

// Throws zero::Error where `here` of the ranks, those of this host, will not find the memory that a run needs, unless
// the options say that it is not to be checked.
void check_room(const RunOptions& options, const Work& work, int ranks, int here);

// Everything that can be known before ranks are started: model, data, plans and the JSON file.
void check(const RunOptions& options, int ranks);

}  // namespace cli

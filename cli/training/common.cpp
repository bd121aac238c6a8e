#include "cli/training/common.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "cli/options/device_option.h"
#include "cli/options/validators.h"
#include "zero/agreement.h"

namespace cli {
namespace {

constexpr std::int64_t kSamples = 4096;  // tokens of the data that are compared

// By content: hosts may have it in different places.
std::string content(const models::TokenSource& source) {
  const std::int64_t count = std::min(source.size(), kSamples);
  std::string tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t token = 0;
    source.read(i * (source.size() / count), {&token, 1});
    tokens.append(reinterpret_cast<const char*>(&token), sizeof token);
  }
  return std::to_string(source.size()) + " tokens, SHA-1 " + c10::sha1(tokens).str();
}

std::string sizes(const models::LlamaConfig& config) {
  std::string text;
  for (const std::int64_t size : {config.hidden_size, config.intermediate_size, config.num_hidden_layers,
                                  config.num_attention_heads, config.num_key_value_heads, config.vocab_size})
    text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

using Setting = std::pair<const char*, std::string>;

// What the engine compares itself is not among them.
std::vector<Setting> settings(const RunOptions& options, const Work& work) {
  return {{"--model", sizes(work.config)},
          {"--device", device_named(options.device).kind},
          {"--data", content(work.corpus.source())},
          {"--plans", zero::joined(options.plans, ",")},
          {"--optimizers", zero::joined(options.optimizers, ",")},
          {"--precisions", zero::joined(options.precisions, ",")},
          {"--shard-ranks", text(options.shard_ranks)},
          {"--tensor", text(options.tensor)},
          {"--batch", text(options.batch)},
          {"--seq", text(options.seq)},
          {"--accumulate", options.settings.text("accumulate")},
          {"--steps", text(options.steps)},
          {"--eval-every", text(options.eval_every)},
          {"--seed", text(options.seed)},
          {"--schedule", options.schedule},
          {"--warmup", options.warmup ? text(*options.warmup) : "a tenth of the steps"},
          {"--threads", text(options.threads)},
          {"--timeline", options.wants_timeline() ? "on" : "off"}};
}

}  // namespace

void require_common(const zero::World& world, const RunOptions& options, const Work& work) {
  const std::vector<Setting> mine = settings(options, work);
  std::vector<std::string> values;
  for (const auto& [name, value] : mine) values.push_back(value);
  if (const auto found = zero::disagreement(world.communicator(), values))
    throw UsageError(std::string(mine[found->line].first) + " is not the same on all ranks: " + found->values +
                     "; start them with the same options and data");
}

}  // namespace cli

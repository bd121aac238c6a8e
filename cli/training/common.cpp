#include "common.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "collect.h"
#include "validators.h"

namespace cli {
namespace {

constexpr std::int64_t kSamples = 4096;  // tokens of the data that are compared
constexpr std::size_t kShown = 64;       // bytes of a value

std::string hash_of(const std::string& bytes) {
  return c10::sha1(bytes).str().substr(0, 15);
}

// By content: hosts may have it in different places.
std::string content(const models::TokenSource& source) {
  const std::int64_t count = std::min(source.size(), kSamples);
  std::string tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t token = 0;
    source.read(i * (source.size() / count), {&token, 1});
    tokens.append(reinterpret_cast<const char*>(&token), sizeof token);
  }
  return std::to_string(source.size()) + " tokens, hash " + hash_of(tokens);
}

std::string sizes(const models::LlamaConfig& config) {
  std::string text;
  for (const std::int64_t size : {config.hidden_size, config.intermediate_size, config.num_hidden_layers,
                                  config.num_attention_heads, config.num_key_value_heads, config.vocab_size})
    text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text.empty() ? "none" : text;
}

using Setting = std::pair<const char*, std::string>;

// What the engine compares itself is not among them.
std::vector<Setting> settings(const RunOptions& options, const Work& work) {
  return {{"--model", sizes(work.config)},
          {"--data", content(work.corpus.source())},
          {"--plans", joined(options.plans)},
          {"--optimizers", joined(options.optimizers)},
          {"--precisions", joined(options.precisions)},
          {"--batch", text(options.batch)},
          {"--seq", text(options.seq)},
          {"--accumulate", text(options.accumulate)},
          {"--steps", text(options.steps)},
          {"--eval-every", text(options.eval_every)},
          {"--seed", text(options.seed)},
          {"--schedule", options.schedule},
          {"--warmup", options.warmup ? text(*options.warmup) : "a tenth of the steps"},
          {"--threads", text(options.threads)},
          {"--timeline", options.wants_timeline() ? "on" : "off"}};
}

std::string values_of_all(const zero::World& world, const std::string& value) {
  std::vector<std::int64_t> mine(kShown / sizeof(std::int64_t));
  std::memcpy(mine.data(), value.data(), std::min(value.size(), kShown - 1));
  const std::vector<std::int64_t> all = gather(world, mine);
  std::string text;
  for (std::size_t rank = 0; rank * mine.size() < all.size(); ++rank)
    text += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank) + " has " +
            reinterpret_cast<const char*>(&all[rank * mine.size()]);
  return text;
}

}  // namespace

void require_common(const zero::World& world, const RunOptions& options, const Work& work) {
  const std::vector<Setting> mine = settings(options, work);
  std::vector<std::int64_t> hashes;
  for (const auto& [name, value] : mine) hashes.push_back(std::stoll(hash_of(value), nullptr, 16));
  const std::vector<std::int64_t> all = gather(world, hashes);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    bool same = true;
    for (std::size_t at = i; at < all.size(); at += mine.size()) same = same && all[at] == all[i];
    if (same) continue;
    throw UsageError(std::string(mine[i].first) + " is not the same on all ranks: " +
                     values_of_all(world, mine[i].second) + "; start them with the same options and data");
  }
}

}  // namespace cli

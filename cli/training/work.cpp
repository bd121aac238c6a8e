#include "work.h"

#include <filesystem>

#include "compare.h"
#include "model.h"
#include "models/json.h"
#include "outputs.h"
#include "report.h"
#include "room.h"

namespace cli {
namespace {

models::TokenFormat format_of(int bits) {
  if (bits == 16) return models::TokenFormat::u16;
  return bits == 32 ? models::TokenFormat::u32 : models::TokenFormat::automatic;
}

models::TokenSource load_tokens(const RunOptions& options) {
  if (!options.data.empty()) return models::TokenSource::open(options.data, format_of(options.tokens));
  if (options.tokens) throw UsageError("--tokens says how to read --data, which is missing");
  if (!std::filesystem::exists(ZERO_DEFAULT_TEXT))
    throw zero::ConfigError("the default text, '" ZERO_DEFAULT_TEXT "', is not on this machine", "give --data");
  return models::TokenSource::open(ZERO_DEFAULT_TEXT, models::TokenFormat::text, {".h"});
}

void check_fit(const Work& work, const RunOptions& options) {
  if (options.seq > work.config.max_position_embeddings)
    throw UsageError("--seq: " + std::to_string(options.seq) + " tokens are more than the " +
                     std::to_string(work.config.max_position_embeddings) + " positions of model '" + options.model +
                     "'");
  work.corpus.windows(options.seq, models::Split::train);
  if (options.eval_every) work.corpus.evaluation_batches(options.batch, options.seq);
}

}  // namespace

Work load(const RunOptions& options) {
  const models::LlamaConfig config = load_model(options.model);
  Work work{config, models::Corpus(load_tokens(options), {.vocab = config.vocab_size, .seed = options.seed})};
  check_fit(work, options);
  return work;
}

void check_count(const RunOptions& options, int ranks) {
  if (models::product({options.steps, options.accumulate, ranks, options.batch, options.seq})) return;
  throw UsageError("--steps x --accumulate x --batch x --seq on " + std::to_string(ranks) +
                   " ranks are more tokens than can be counted");
}

void check_room(const RunOptions& options, const Work& work, int ranks, int here) {
  const auto room = planner::room_of_host();
  if (!room || !options.memory_check) return;
  for (const Contender& each : contenders(options)) check_room(each.options, work.config, ranks, here, *room);
}

void check(const RunOptions& options, int ranks) {
  check_count(options, ranks);
  for (const std::string& plan : options.plans) make_plan(options, plan, ranks);
  check_room(options, load(options), ranks, ranks);
  check_outputs(options);
}

}  // namespace cli

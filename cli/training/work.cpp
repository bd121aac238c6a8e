#include "cli/training/work.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <filesystem>

#include "cli/options/model.h"
#include "zero/safetensors.h"

namespace cli {
namespace {

// The headers of the LibTorch that was loaded.
std::filesystem::path default_text() {
  Dl_info loaded{};
  ::dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &loaded);
  return std::filesystem::path(loaded.dli_fname).parent_path().parent_path() / "include";
}

models::TokenSource load_tokens(const RunOptions& options) {
  if (!options.data.empty()) return open_data(options.data, options.tokens);
  std::error_code error;
  const std::filesystem::path text = default_text();
  if (!std::filesystem::exists(text, error))
    throw zero::ConfigError("the default text, '" + text.string() + "', is not on this machine", "give --data");
  return models::TokenSource::open(text, models::TokenFormat::text, {".h"});
}

void check_fit(const Work& work, const RunOptions& options) {
  work.corpus.windows(options.seq, models::Split::train);
  if (options.eval_every) work.corpus.evaluation_batches(options.batch, options.seq);
}

}  // namespace

Work load(const RunOptions& options) {
  const models::LlamaConfig config = load_model(options.model, options);
  Work work{config, models::Corpus(load_tokens(options), {.vocab = config.vocab_size, .seed = options.seed})};
  check_fit(work, options);
  return work;
}

void load_weights(models::Llama& model, const std::string& weights) {
  const bool tied = model->config().tie_word_embeddings;
  zero::load_safetensors(*model, weights, {}, [tied](const std::string& name) {
    return name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
  });
}

models::Llama with_weights(models::Llama model, const std::string& name) {
  if (const std::string weights = weights_of(name); !weights.empty()) load_weights(model, weights);
  return model;
}

}  // namespace cli

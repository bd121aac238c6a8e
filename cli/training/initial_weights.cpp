#include "cli/training/initial_weights.h"

#include "cli/options/pretrained.h"
#include "zero/safetensors.h"

namespace cli {

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

#include "planner/activations.h"

#include <cmath>

namespace planner {

// Korthikanti et al., 2022, section 4.1: s b h (34 + 5 a s / h) bytes a layer in 16 bits without dropout's masks being
// counted apart; logits in fp32, and their gradient.
Activations activations(const models::LlamaConfig& config, std::int64_t batch, std::int64_t seq,
                        zero::Precision precision) {
  const auto tokens = static_cast<double>(batch * seq), hidden = static_cast<double>(config.hidden_size);
  const double scores = 5.0 * static_cast<double>(config.num_attention_heads * seq) / hidden;
  const double layers = static_cast<double>(config.num_hidden_layers) * tokens * hidden * (34.0 + scores);
  const double width = precision == zero::Precision::fp32 ? 2 : 1;
  const double logits = 8.0 * tokens * static_cast<double>(config.vocab_size);
  return {static_cast<std::int64_t>(std::llround(layers * width + logits)), "the loss, at the start of backward"};
}

}  // namespace planner

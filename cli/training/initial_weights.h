// Weights that a model of ours takes from files.
#pragma once

#include <string>

#include "models/llama.h"

namespace cli {

// `weights`: what zero::load_safetensors() reads, and throws for. What older files have beside weights is not looked
// at, as is the head of a model whose head is tied to its embedding.
void load_weights(models::Llama& model, const std::string& weights);

// The model with the weights that --model names, or as it is where it names none.
models::Llama with_weights(models::Llama model, const std::string& name);

}  // namespace cli

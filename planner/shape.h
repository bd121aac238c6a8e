// What a model's parameters are, as the engine finds them in the model: names, sizes and units. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/llama_config.h"
#include "partition/repeated.h"
#include "zero/estimate.h"
#include "zero/layout.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace planner {

// Layers that are alike are there once, under the first one's name.
struct Shape {
  models::LlamaConfig config;  // of a shape known only by a count: one of usual proportions, for activations and time
  std::vector<zero::ParameterInfo> infos;
  std::vector<std::string> units;    // of infos, in order
  zero::Repeats repeats;             // by unit, in order; of those behind its end: 1
  std::int64_t parameters = 0;       // Psi, of all layers
  int tensor = 1;                    // ranks of a tensor axis, of which all this is one's part
  std::int64_t of_model = 0;         // parameters of all of these ranks
  std::vector<std::string> assumed;  // sentences; empty where the shape is known
};

// Those of models::Llama, in the order in which the engine meets them: of the part that each of `tensor` ranks has.
// Throws zero::ConfigError for sizes that these do not divide.
Shape shape_of(const models::LlamaConfig& config, int tensor = 1);

// A decoder of usual proportions with exactly that many parameters: 12 h^2 in each of L layers with h = 128 L. Its
// layers are L equal units; what does not divide is in the last.
// Of several ranks of a tensor axis each has as large a part of every unit.
Shape shape_of(std::int64_t parameters, int tensor = 1);

// As the plan stores them.
std::vector<zero::ParameterSpec> specs(const Shape& shape, const zero::Plan& plan);

// The units of models::Llama, those behind the end of `repeats` once, in the order in which a micro-batch needs their
// values. A tied table is used again as the head: at the end of forward and so at the start of backward.
zero::Trace order_of_use(const models::LlamaConfig& config, const zero::Layout& layout, zero::Repeats repeats = {});

}  // namespace planner

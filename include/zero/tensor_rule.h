// Which parameters are cut over the tensor axis of a mesh, and along which dimension: tensor parallelism (Megatron-LM,
// section 3) of a module that is not changed. To the program every tensor has its global sizes; below autograd each
// rank computes with its part, and where no rule takes an operator it runs whole, on every rank.
//
//   zero::Mesh mesh(zero::init(), {.tensor = 2});
//   zero::Options options{.tensor = zero::tensor_named({{"*.up", zero::TensorCut::column},
//                                                       {"*.down", zero::TensorCut::row}})};
//   zero::Engine engine(*model, mesh, zero::Plan::zero3(), zero::AdamW{}, options);
//
// Ranks that differ along the tensor axis alone have the same micro-batches. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zero/optimizer.h"

namespace at {
class Tensor;
}

namespace zero {

// Along dimension `dim`, of which each rank has its part; where it is `blocks` of equal length, one behind the other,
// its part of each: of one layer that makes queries, keys and values a rank has those of its heads, in three blocks.
struct TensorCut {
  std::int64_t dim = 0, blocks = 1;

  // The first dimension: a linear layer's outputs, weight [outputs, inputs] and bias, an embedding's rows.
  static const TensorCut column;
  // The second one: a linear layer's inputs; its bias is every rank's.
  static const TensorCut row;

  constexpr TensorCut in_blocks(std::int64_t count) const { return {dim, count}; }
  bool operator==(const TensorCut&) const = default;
};
inline constexpr TensorCut TensorCut::column{0};
inline constexpr TensorCut TensorCut::row{1};

// As tensor_plan() takes it: "column", "row", "column/3" in three blocks.
std::string name(const TensorCut& cut);

// None: every rank has the parameter.
using TensorRule = std::function<std::optional<TensorCut>(const ParameterInfo&)>;

// Of the parameters of modules of these names, as in named_modules(): the first that fits says how. "*" stands for a
// part of a path, or, in front, for any beginning of one: "*.q_proj". A rule that takes no parameter is a ConfigError
// of the engine.
TensorRule tensor_named(std::vector<std::pair<std::string, TensorCut>> modules);

// By names of modules or parameters, below any beginning of a path, and of styles, as a Hugging Face model's
// `base_model_tp_plan` has them: "colwise" of a linear layer is its outputs, "rowwise" its inputs; of an embedding
// "rowwise" is its rows, "colwise" its columns. "packed_colwise" and "packed_rowwise" are in two blocks; "colwise_rep"
// and the like are "colwise", since what is cut is gathered where a program needs all of it; "sequence_parallel",
// "gather" and what else says nothing of parameters is taken for nothing, as "whole" is. "column" and "row" are
// TensorCut's, "column/3" in three blocks. A parameter's own name goes
// before patterns that fit it, too. Throws ConfigError, naming the module, for another style, such as those of experts.
TensorRule tensor_plan(const std::vector<std::pair<std::string, std::string>>& plan);

// How often an operator ran, on tensors that are cut over a tensor axis: on the ranks' parts, or whole on each of them,
// for want of a rule that takes its parts.
struct TensorOperator {
  std::string name;  // "aten::mm"
  std::int64_t in_parts = 0, whole = 0;
};

// All of a tensor that is cut over the ranks of a tensor axis, on each of them; of any other tensor that itself.
// Outside of autograd. Collective along the axis.
at::Tensor whole(const at::Tensor& tensor);

}  // namespace zero

#include "zero/cross_entropy.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "backwards/checkpointed_pieces.h"
#include "zero/error.h"

namespace zero {
namespace {

std::string text(at::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

void require(bool holds, const std::string& what, const char* hint) {
  if (!holds) throw ConfigError("zero::cross_entropy: " + what, hint);
}

void check_tensors(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                   const at::Tensor& bias) {
  require(hidden.defined() && weight.defined() && targets.defined(), "hidden, weight or targets is undefined",
          "give all three");
  require(weight.dim() == 2, "weight has sizes " + text(weight.sizes()), "give [classes, size]");
  require(hidden.dim() > 0 && hidden.size(-1) == weight.size(1),
          "hidden has sizes " + text(hidden.sizes()) + ", and weight " + text(weight.sizes()),
          "give hidden [..., size] and weight [classes, size]");
  require(at::isFloatingType(hidden.scalar_type()),
          std::string("hidden is of dtype ") + at::toString(hidden.scalar_type()), "give what the head is applied to");
  require(targets.sizes() == hidden.sizes().slice(0, static_cast<std::size_t>(hidden.dim() - 1)),
          "targets have sizes " + text(targets.sizes()) + ", and hidden " + text(hidden.sizes()),
          "give a target for each token");
  require(targets.scalar_type() == at::kLong,
          std::string("targets are of dtype ") + at::toString(targets.scalar_type()), "give classes, as int64");
  require(!bias.defined() || bias.sizes() == weight.sizes().slice(0, 1),
          "bias has other sizes than [" + std::to_string(weight.size(0)) + "], the classes of weight",
          "give one for each class");
}

void check_numbers(const CrossEntropyOptions& options) {
  require(options.pieces >= 0, std::to_string(options.pieces) + " pieces",
          "give 1 or more, or 0 for as many as piece_bytes makes");
  require(options.piece_bytes >= 1, "pieces of " + std::to_string(options.piece_bytes) + " bytes", "give 1 or more");
  require(options.label_smoothing >= 0 && options.label_smoothing <= 1,
          "a label_smoothing of " + std::to_string(options.label_smoothing), "give 0 to 1");
}

// Tokens of a piece.
std::int64_t tokens_of_piece(std::int64_t tokens, std::int64_t bytes_of_token, const CrossEntropyOptions& options) {
  const std::int64_t most = std::max<std::int64_t>(options.piece_bytes / std::max<std::int64_t>(bytes_of_token, 1), 1);
  const std::int64_t wanted = options.pieces > 0 ? options.pieces : (tokens + most - 1) / most;
  const std::int64_t pieces = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(tokens, 1));
  return std::max<std::int64_t>((tokens + pieces - 1) / pieces, 1);
}

// Of one piece.
class Head {
 public:
  explicit Head(const CrossEntropyOptions& options)
      : ignore_index_(options.ignore_index), label_smoothing_(options.label_smoothing) {}

  at::Tensor loss(const at::Tensor& hidden, const at::Tensor& targets, const at::Tensor& weight, const at::Tensor& bias,
                  at::Reduction::Reduction reduction) const {
    at::Tensor logits = at::linear(hidden, weight, bias);
    logits = logits.reshape({-1, logits.size(-1)}).to(at::toOpMathType(logits.scalar_type()));
    return at::cross_entropy_loss(logits, targets, {}, reduction, ignore_index_, label_smoothing_);
  }
  at::Tensor counted(const at::Tensor& targets, at::ScalarType dtype) const {
    return targets.ne(ignore_index_).sum().to(dtype);
  }

 private:
  std::int64_t ignore_index_;
  double label_smoothing_;
};

at::Tensor sum_over_pieces(const Head& head, const std::vector<at::Tensor>& hidden,
                           const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& shared) {
  std::vector<std::vector<at::Tensor>> pieces;
  for (std::size_t i = 0; i < hidden.size(); ++i) pieces.push_back({hidden[i], targets[i]});
  const auto of_piece = [head](const std::vector<at::Tensor>& given) {
    const at::Tensor bias = given.size() > 3 ? given[3] : at::Tensor();
    return std::vector{head.loss(given[0], given[1], given[2], bias, at::Reduction::Sum)};
  };
  const std::vector<at::Tensor> sums = checkpoint_pieces(of_piece, pieces, shared);
  at::Tensor sum = sums.front();
  for (std::size_t i = 1; i < sums.size(); ++i) sum = at::add(sum, sums[i]);
  return sum;
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                         const CrossEntropyOptions& options) {
  check_tensors(hidden, weight, targets, options.bias);
  check_numbers(options);
  const at::Tensor classes = targets.reshape({-1});
  const bool mean = options.reduction == LossReduction::mean;
  const std::int64_t wide = hidden.scalar_type() == at::kDouble ? 8 : 4;
  const std::int64_t piece = tokens_of_piece(classes.size(0), weight.size(0) * wide, options);
  const Head head(options);
  if (classes.size(0) <= piece)
    return head.loss(hidden, classes, weight, options.bias, mean ? at::Reduction::Mean : at::Reduction::Sum);
  const at::Tensor tokens = hidden.reshape({-1, hidden.size(-1)});
  std::vector<at::Tensor> shared{weight};
  if (options.bias.defined()) shared.push_back(options.bias);
  const at::Tensor sum = sum_over_pieces(head, tokens.split(piece), classes.split(piece), shared);
  return mean ? at::div(sum, head.counted(classes, sum.scalar_type())) : sum;
}

}  // namespace zero

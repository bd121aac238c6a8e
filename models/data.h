// Batches of a corpus, addressed by global index alone: whoever asks for batch i, in whatever order and
// at whatever world size, gets the same tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "models/tokens.h"

namespace models {

enum class Split : std::uint8_t { train, held_out };

// Tokens [B, T] and the tokens that follow each, both int64.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
};

struct CorpusOptions {
  double held_out = 0.05;  // the last part of the tokens, never trained on
  std::int64_t vocab = 0;  // tokens at or above it are faults; 0: unchecked
  std::uint64_t seed = 0;  // of the order of the training windows
};

// A split is cut into windows of T + 1 tokens; a window begins with the last token of the one before.
class Corpus {
 public:
  // Text is checked against a vocabulary below 256 here, other tokens when they are read.
  // Throws zero::ConfigError for a token outside the vocabulary or a fraction outside [0, 1).
  explicit Corpus(TokenSource source, CorpusOptions options = {});

  const TokenSource& source() const { return source_; }
  std::int64_t tokens(Split split) const;
  // Windows of `seq` tokens. Throws zero::ConfigError when there is none.
  std::int64_t windows(std::int64_t seq, Split split) const;

  // Rows [index * batch, (index + 1) * batch) of the endless sequence of windows. Training: epoch after
  // epoch, each a permutation of all windows of its own. Held out: in order, again and again.
  Batch batch(std::int64_t index, std::int64_t batch, std::int64_t seq, Split split = Split::train) const;

  // Whole batches of held-out windows: indices [0, n) of batch(..., Split::held_out) repeat nothing.
  // Throws zero::ConfigError when there is none.
  std::int64_t evaluation_batches(std::int64_t batch, std::int64_t seq) const;

  // All tokens once, in order, whatever the split: batches [0, n) of up to `batch` windows, of which the last window is
  // shorter where the tokens do not divide, and then a batch of its own. Throw zero::ConfigError likewise.
  std::int64_t ordered_batches(std::int64_t batch, std::int64_t seq) const;
  Batch ordered_batch(std::int64_t index, std::int64_t batch, std::int64_t seq) const;

 private:
  std::int64_t begin(Split split) const { return split == Split::train ? 0 : train_; }
  std::int64_t window(std::int64_t row, std::int64_t windows, Split split) const;
  void read(std::int64_t begin, std::span<std::int64_t> out) const;
  // Of windows of `seq` tokens, and one token more each, the first from `begin` on.
  Batch windows_from(std::int64_t begin, std::int64_t windows, std::int64_t seq) const;

  TokenSource source_;
  CorpusOptions options_;
  std::int64_t train_ = 0;
};

// Bijection of [0, count) chosen by `key`: the image of `position`.
std::int64_t permute(std::int64_t position, std::int64_t count, std::uint64_t key);

}  // namespace models

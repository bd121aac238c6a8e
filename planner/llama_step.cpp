#include "planner/llama_step.h"

#include <algorithm>

namespace planner {
namespace {

constexpr std::int64_t kWide = 4;  // bytes of fp32

// Rows of queries and of keys that LibTorch's attention on the CPU takes at a time.
std::int64_t query_rows(std::int64_t seq) {
  const std::int64_t rows = seq >= 768 ? 256 : seq >= 192 ? 64 : 32;
  return std::min(rows, seq);
}
std::int64_t key_rows(std::int64_t seq) {
  return std::min<std::int64_t>(512, seq);
}

class Walk {
 public:
  Walk(const MicroBatch& work, StepListener& listener)
      : c_(work.config),
        to_(listener),
        seq_(work.seq),
        tokens_(work.batch * work.seq),
        narrow_(work.precision != zero::Precision::fp32),
        wide_results_(work.wide_results && narrow_ && work.precision != zero::Precision::fp16),
        size_(narrow_ ? 2 : kWide) {}

  void run() {
    to_.at("forward");
    embed();
    to_.repeat(c_.num_hidden_layers, [&] { layer(); });
    norm();
    if (narrow_) to_.drop(stream());
    to_.at("loss");
    loss();
    to_.at("start of backward");
    loss_backward();
    norm_backward(false);
    to_.repeat(c_.num_hidden_layers - 1, [&] { layer_backward(false); });
    layer_backward(true);
    embed_backward();
  }

 private:
  std::int64_t query_width() const { return c_.num_attention_heads * c_.head_size(); }
  std::int64_t key_width() const { return c_.num_key_value_heads * c_.head_size(); }
  std::int64_t bytes(std::int64_t width) const { return tokens_ * width * size_; }
  std::int64_t stream() const { return bytes(c_.hidden_size); }
  std::int64_t wide_stream() const { return tokens_ * c_.hidden_size * kWide; }
  std::int64_t queries() const { return bytes(query_width()); }
  std::int64_t keys() const { return bytes(key_width()); }
  std::int64_t inner() const { return bytes(c_.intermediate_size); }
  std::int64_t per_token() const { return tokens_ * kWide; }  // one fp32 a token
  std::int64_t angles() const { return seq_ * c_.head_size() * size_; }
  std::int64_t table() const { return c_.vocab_size * c_.hidden_size * size_; }
  std::int64_t wide_logits() const { return tokens_ * c_.vocab_size * kWide; }

  // An operator that makes a new block of `made` bytes and reads `operands` as large.
  void make(std::int64_t made, int operands = 1) {
    to_.hold(made);
    to_.sweep(made / size_, made * (1 + operands));
  }

  void product(std::int64_t width, std::int64_t from) {
    to_.hold(bytes(width));
    to_.product(tokens_, width, from);
    if (narrow_)
      transient(std::max({blocks_of_inputs(from), copy_of_weight(width * from), wide_result(tokens_ * width)}));
  }

  // What oneDNN takes beside a product in 16 bits, at most, on the processors on which it was looked at: blocks of its
  // operands in another order; with AMX a weight, as far as it is kept for all tokens; with AVX-512 alone the result in
  // fp32.
  static std::int64_t blocks_of_inputs(std::int64_t from) {
    return std::min<std::int64_t>(200'000, 84'000 + 96 * from);
  }
  std::int64_t copy_of_weight(std::int64_t elements) const {
    return std::min(elements * size_, 720'000 + 2'600 * tokens_) + 6'000;
  }

  std::int64_t wide_result(std::int64_t elements) const { return wide_results_ ? elements * kWide : 0; }

  void embed() {
    make(stream());
    to_.hold(angles());  // cosines
    to_.hold(angles());  // sines
  }

  // Leaves the normed values, and behind them what backward needs.
  void norm() {
    const std::int64_t wide = wide_stream();
    if (narrow_) make(wide);
    make(wide);  // squares
    to_.hold(per_token());
    to_.hold(per_token());
    to_.drop(per_token());
    to_.drop(wide);
    make(wide, 1);
    make(wide, 1);
    if (!narrow_) return;
    make(stream(), 2);
    to_.drop(wide);
  }

  void layer() {
    norm();
    attention();
    norm();
    mlp();
    if (narrow_) to_.drop(2 * stream());
  }

  // The rotated copy of a block of `width` columns.
  void rotate(std::int64_t width) {
    const std::int64_t whole = bytes(width);
    make(whole / 2);
    make(whole);
    make(whole);
    make(whole);
    make(whole, 2);
    to_.drop(3 * whole + whole / 2);
  }

  void attention() {
    const std::int64_t hidden = c_.hidden_size;
    product(key_width(), hidden);
    product(key_width(), hidden);
    rotate(key_width());
    product(query_width(), hidden);
    rotate(query_width());
    to_.hold(queries());
    to_.hold(tokens_ * c_.num_attention_heads * kWide);
    transient(attention_room(1));
    to_.attention(attention_flops(), false);
    to_.drop(queries() + keys());  // unrotated
    product(hidden, query_width());
    make(stream(), 2);
    to_.drop(stream());
  }

  double attention_flops() const {
    return 2.0 * static_cast<double>(tokens_) * static_cast<double>(seq_) * static_cast<double>(query_width());
  }

  // For one thread: scores of a block, and in 16 bits a copy of them.
  std::int64_t attention_room(int blocks) const {
    const std::int64_t rows = query_rows(seq_), scores = rows * key_rows(seq_);
    const std::int64_t wide = blocks * scores + (blocks == 1 ? rows * (2 + c_.head_size()) : 0);
    return wide * kWide + (narrow_ ? blocks * scores * size_ : 0);
  }

  void transient(std::int64_t room) {
    to_.hold(room);
    to_.drop(room);
  }

  void mlp() {
    product(c_.intermediate_size, c_.hidden_size);
    product(c_.intermediate_size, c_.hidden_size);
    make(inner());
    make(inner(), 2);
    product(c_.hidden_size, c_.intermediate_size);
    make(stream(), 2);
    to_.drop(stream());
  }

  void loss() {
    const std::int64_t logits = bytes(c_.vocab_size);
    product(c_.vocab_size, c_.hidden_size);
    if (narrow_) make(wide_logits());
    make(wide_logits());
    to_.drop(wide_logits());
    if (narrow_) to_.drop(logits);
  }

  void loss_backward() {
    const std::int64_t logits = bytes(c_.vocab_size);
    make(wide_logits());
    make(wide_logits(), 2);
    to_.drop(2 * wide_logits());
    if (narrow_) {
      make(logits, 2);
      to_.drop(wide_logits());
    }
    product_backward(c_.vocab_size, c_.hidden_size);
    to_.drop(logits + stream());
    to_.at("backward");
    if (!c_.tie_word_embeddings) to_.drop(table());  // when it is complete it is still there
  }

  // The gradients of a product's weight [to, from], which is taken away later, and of its input.
  void product_backward(std::int64_t to, std::int64_t from) {
    to_.hold(to * from * size_);
    to_.product(to, from, tokens_);
    if (narrow_)
      transient(std::max(std::min<std::int64_t>(1'400'000, 64'000 + 1'000 * tokens_), wide_result(to * from)));
    product(from, to);
  }

  // From the gradient of the normed values; leaves that of what was normed, or adds it to the one that is there.
  void norm_backward(bool adds) {
    const std::int64_t wide = wide_stream();
    if (narrow_) {
      make(wide);
      to_.drop(stream());
    }
    make(wide, 2);
    make(wide, 1);
    to_.drop(3 * wide);
    make(wide, 2);
    make(wide, 1);
    to_.drop(2 * wide);
    to_.drop(per_token());
    if (adds && !narrow_) to_.drop(wide);
    make(wide, 0);
    make(wide);
    make(wide);
    make(wide, 2);
    to_.drop(3 * wide);
    to_.drop(2 * wide);
    to_.sweep(tokens_ * c_.hidden_size, 3 * wide);
    if (!narrow_) return;
    make(stream(), 2);
    to_.drop(wide);
    if (adds) to_.drop(stream());
  }

  void layer_backward(bool first) {
    mlp_backward();
    norm_backward(true);
    attention_backward(first);
    to_.completes_layer();
    norm_backward(true);
  }

  void mlp_backward() {
    const std::int64_t hidden = c_.hidden_size, inside = c_.intermediate_size;
    const std::int64_t weight = hidden * inside * size_;
    product_backward(hidden, inside);
    to_.drop(inner() + weight);
    make(inner(), 2);
    make(inner(), 2);
    to_.drop(3 * inner());
    make(inner(), 2);
    to_.drop(2 * inner());
    product_backward(inside, hidden);
    to_.drop(inner() + weight);
    product_backward(inside, hidden);
    to_.drop(inner() + stream());
    make(stream(), 2);
    to_.drop(2 * stream() + weight);
  }

  // From the gradient of a rotated block to that of the input of its product.
  void rotate_backward(std::int64_t width, bool last) {
    const std::int64_t whole = bytes(width);
    make(whole);
    make(whole);
    to_.drop(whole);
    if (last) to_.drop(2 * angles());
    make(whole / 2);
    make(whole);
    to_.drop(2 * whole + whole / 2);
    to_.sweep(whole / size_, 3 * whole);
    product_backward(width, c_.hidden_size);
    to_.drop(whole);
  }

  void attention_backward(bool first) {
    const std::int64_t hidden = c_.hidden_size;
    product_backward(hidden, query_width());
    to_.drop(hidden * query_width() * size_);
    to_.hold(queries() + 2 * keys());
    transient(attention_room(2));
    to_.attention(2.5 * attention_flops(), true);
    to_.drop(queries());
    to_.drop(2 * queries() + 2 * keys() + tokens_ * c_.num_attention_heads * kWide);
    rotate_backward(query_width(), false);
    to_.drop(hidden * query_width() * size_);
    rotate_backward(key_width(), first);
    make(stream(), 2);
    to_.drop(2 * stream() + hidden * key_width() * size_);
    product_backward(key_width(), hidden);
    to_.drop(keys() + 2 * stream() + hidden * key_width() * size_);
    to_.sweep(tokens_ * hidden, 3 * stream());
  }

  void embed_backward() {
    make(table(), 0);
    to_.drop(stream());
    if (c_.tie_word_embeddings) {
      make(table(), 2);
      to_.drop(2 * table());
    }
    to_.completes_embedding();
    to_.drop(table());
  }

  const models::LlamaConfig& c_;
  StepListener& to_;
  std::int64_t seq_, tokens_;
  bool narrow_, wide_results_;
  std::int64_t size_;
};

}  // namespace

void walk(const MicroBatch& work, StepListener& listener) {
  Walk(work, listener).run();
}

}  // namespace planner

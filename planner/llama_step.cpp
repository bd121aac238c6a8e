#include "planner/llama_step.h"

#include <algorithm>
#include <vector>

#include "planner/step_operators.h"

namespace planner {
namespace {

constexpr std::int64_t kGenerator = 5056;  // bytes of the state that a checkpoint notes

// Rows of queries and of keys that LibTorch's attention on the CPU takes at a time.
std::int64_t query_rows(std::int64_t seq) {
  const std::int64_t rows = seq >= 768 ? 256 : seq >= 192 ? 64 : 32;
  return std::min(rows, seq);
}
std::int64_t key_rows(std::int64_t seq) {
  return std::min<std::int64_t>(512, seq);
}

// What a norm keeps for backward, and its result. In fp32 its input is kept as it is.
struct Normed {
  Block input, scale, ratio, result;
};

struct Attended {
  Block value, key, query, result, sums;
};

// What a layer keeps for backward.
struct Layer {
  int unit = StepOperator::kNoUnit;
  Block before;  // its input
  Normed first;
  Attended attended;
  Normed second;
  Block up, gate, activated, inner;
};

class Walk final : StepOperators {
 public:
  Walk(const MicroBatch& work, StepListener& listener)
      : StepOperators(work, listener), c_(work.config), seq_(work.seq) {}

  void run() {
    const auto layers = static_cast<int>(c_.num_hidden_layers);
    norm_unit_ = layers + 1;
    head_unit_ = c_.tie_word_embeddings ? 0 : layers + 2;
    to_.at("forward");
    embed();
    to_.repeat(layers, [&] { layer(); });
    last_ = norm(stream_, norm_unit_);
    if (narrow_) drop(stream_);
    to_.at("loss");
    loss();
    to_.at("start of backward");
    begin_backward();
    loss_backward();
    norm_backward(last_, norm_unit_);
    to_.repeat(layers - 1, [&] { part_backward(false); });
    part_backward(true);
    embed_backward();
    for (const Block& block : to_end_) drop(block);
  }

 private:
  using Recompute = models::Recompute;

  bool again(Recompute what) const { return c_.activations.recompute == what; }
  bool in_pieces() const { return std::min(c_.activations.loss_pieces, tokens_) > 1; }

  std::int64_t query_width() const { return c_.num_attention_heads * c_.head_size(); }
  std::int64_t key_width() const { return c_.num_key_value_heads * c_.head_size(); }
  std::int64_t stream() const { return bytes(c_.hidden_size); }
  std::int64_t wide_stream() const { return wide(c_.hidden_size); }
  std::int64_t queries() const { return bytes(query_width()); }
  std::int64_t keys() const { return bytes(key_width()); }
  std::int64_t inner() const { return bytes(c_.intermediate_size); }
  std::int64_t angles() const { return seq_ * c_.head_size() * size_; }
  std::int64_t table() const { return c_.vocab_size * c_.hidden_size * size_; }
  std::int64_t wide_logits() const { return wide(c_.vocab_size); }

  void embed() {
    stream_ = make("embedding", stream(), {}, 1, 0);
    cosines_ = small("cosines", angles(), {stream_});
    sines_ = small("sines", angles(), {stream_});
    if (again(Recompute::layers)) to_end_ = {cosines_, sines_};
  }

  // A checkpoint has it for as long as there is a graph.
  void note_generator() { to_end_.push_back(small("state of a generator", kGenerator, {})); }

  Normed norm(const Block& of, int unit) {
    const std::int64_t whole = wide_stream();
    const Block input = narrow_ ? make("cast", whole, {of}) : of;
    const Block squares = make("squares", whole, {input});
    const Block mean = small("mean", wide(1), {squares});
    const Block scale = small("scale of the norm", wide(1), {mean});
    drop(mean, squares);
    const Block ratio = make("norm", whole, {input, scale}, 1);
    const Block product = make("weighted norm", whole, {ratio}, 1, unit);
    if (!narrow_) return {input, scale, ratio, product};
    const Block result = make("cast", stream(), {product}, 2);
    drop(product);
    return {input, scale, ratio, result};
  }

  // With all that backward needs; its input stays.
  Layer computed(const Block& before, int unit) {
    Layer its;
    its.unit = unit;
    its.before = before;
    its.first = norm(before, unit);
    const Block middle = attention(its, before);
    its.second = norm(middle, unit);
    stream_ = mlp(its, middle);
    if (narrow_) drop(middle);
    return its;
  }

  void layer() {
    if (again(Recompute::layers)) note_generator();
    layers_.push_back(computed(stream_, ++layer_));
    const Layer& its = layers_.back();
    if (!again(Recompute::layers)) {
      if (narrow_) drop(its.before);
      return;
    }
    const Attended& of = its.attended;
    if (narrow_) drop(its.first.input);  // else it is the layer's
    drop(its.first.scale, its.first.ratio, its.first.result);
    drop(of.value, of.key, of.query, of.result, of.sums);
    drop(its.second.input, its.second.scale, its.second.ratio, its.second.result);
    drop(its.up, its.gate, its.activated, its.inner);
  }

  // The rotated copy of a block of `width` columns.
  Block rotate(std::int64_t width, const Block& of) {
    const std::int64_t whole = bytes(width);
    const Block half = make("negative", whole / 2, {of});
    const Block turned = make("turned halves", whole, {of, half});
    const Block along = make("times cosines", whole, {of, cosines_});
    const Block across = make("times sines", whole, {turned, sines_});
    const Block sum = make("rotation", whole, {along, across}, 2);
    drop(half, turned, along, across);
    return sum;
  }

  Block attention(Layer& its, const Block& before) {
    const std::int64_t hidden = c_.hidden_size;
    const Block& normed = its.first.result;
    Attended& of = its.attended;
    of.value = product(key_width(), hidden, normed, its.unit);
    const Block key = product(key_width(), hidden, normed, its.unit);
    of.key = rotate(key_width(), key);
    const Block query = product(query_width(), hidden, normed, its.unit);
    of.query = rotate(query_width(), query);
    runs("attention", {of.query, of.key, of.value});
    of.result = hold(queries());
    of.sums = hold(tokens_ * c_.num_attention_heads * kWide);
    to_.scratch(attention_room(1));
    to_.attention(attention_flops(), false);
    drop(query, key);
    const Block projected = product(hidden, query_width(), of.result, its.unit);
    const Block sum = make("sum", stream(), {before, projected}, 2);
    drop(projected);
    return sum;
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

  Block mlp(Layer& its, const Block& before) {
    its.up = product(c_.intermediate_size, c_.hidden_size, its.second.result, its.unit);
    its.gate = product(c_.intermediate_size, c_.hidden_size, its.second.result, its.unit);
    if (again(Recompute::selective)) note_generator();
    gated(its);
    if (again(Recompute::selective)) drop(its.activated);
    const Block projected = product(c_.hidden_size, c_.intermediate_size, its.inner, its.unit);
    const Block sum = make("sum", stream(), {before, projected}, 2);
    drop(projected);
    return sum;
  }

  void gated(Layer& its) {
    its.activated = make("silu", inner(), {its.gate});
    its.inner = make("gated", inner(), {its.activated, its.up}, 2);
  }

  void loss() {
    if (!in_pieces()) {
      logarithms_ = logarithms();
      return;
    }
    note_generator();
    each_piece(c_.activations.loss_pieces, [&] { drop(logarithms()); });
  }

  // Of the tokens that are looked at.
  Block logarithms() {
    const Block logits = product(c_.vocab_size, c_.hidden_size, last_.result, head_unit_);
    const Block wide = narrow_ ? make("cast", wide_logits(), {logits}) : logits;
    const Block result = make("log softmax", wide_logits(), {wide});
    drop(wide);
    if (narrow_) drop(logits);
    return result;
  }

  void loss_backward() {
    const Gradients of = in_pieces() ? pieces_backward() : logits_backward(logarithms_);
    drop(last_.result);
    flow_ = of.input;
    of_table_ = of.weight;
    to_.at("backward");
    if (!c_.tie_word_embeddings) drop(of_table_);  // when it is complete it is still there
  }

  Gradients logits_backward(const Block& logarithms) {
    const Block of_loss = make("backward of the loss", wide_logits(), {logarithms});
    Block gradient = make("backward of log softmax", wide_logits(), {of_loss, logarithms}, 2);
    drop(of_loss, logarithms);
    if (narrow_) {
      const Block wide = gradient;
      gradient = make("cast", bytes(c_.vocab_size), {wide}, 2);
      drop(wide);
    }
    const Gradients of = product_backward(c_.vocab_size, c_.hidden_size, gradient, last_.result, head_unit_);
    drop(gradient);
    return of;
  }

  // Each is computed again. The head's gradient is their sum in fp32.
  Gradients pieces_backward() {
    std::vector<Block> of_tokens;
    Block sum;
    each_piece(c_.activations.loss_pieces, [&] {
      const Gradients of = logits_backward(computed_again([&] { return logarithms(); }));
      of_tokens.push_back(of.input);
      sum = of_tokens.size() == 1 ? first_of_pieces(of.weight) : with_next_of_pieces(sum, of.weight);
    });
    const Block wide = sum;
    if (narrow_) {
      sum = make("cast", table(), {wide}, 2);
      drop(wide);
    }
    const Block input = make("gradients of pieces", stream(), {of_tokens.front()});
    for (const Block& each : of_tokens) drop(each);
    return {sum, input};
  }

  Block first_of_pieces(const Block& gradient) {
    if (!narrow_) return gradient;
    const Block sum = make("cast", kWide * table() / size_, {gradient});
    drop(gradient);
    return sum;
  }

  // In its place, in 16 bits a sixteenth after the other.
  Block with_next_of_pieces(const Block& sum, const Block& gradient) {
    constexpr std::int64_t parts = 16;
    runs("sum over pieces", {sum, gradient});
    if (narrow_) to_.scratch(sum.bytes / parts);
    to_.sweep(c_.vocab_size * c_.hidden_size, 3 * sum.bytes);
    drop(gradient);
    return sum;
  }

  // From the gradient of the normed values; leaves that of what was normed, or adds it to the one of `beside`.
  void norm_backward(const Normed& of, int unit, Block* beside = nullptr) {
    const std::int64_t whole = wide_stream();
    Block gradient = flow_;
    if (narrow_) {
      gradient = make("cast", whole, {flow_});
      drop(flow_);
    }
    const Block weighted = make("gradient of a norm's weight", whole, {gradient, of.ratio}, 2);
    const Block inside = make("backward of the weighted norm", whole, {gradient}, 1, unit);
    drop(gradient, weighted, of.ratio);
    const Block scaled = make("gradient of the scale", whole, {inside, of.input}, 2);
    const Block direct = make("backward of the norm", whole, {inside, of.scale}, 1);
    drop(inside, scaled, of.scale);
    if (beside != nullptr && !narrow_) add_to(*beside, direct);
    const Block spread = make("backward of the mean", whole, {}, 0);
    const Block twice = make("twice the input", whole, {of.input});
    const Block power = make("power", whole, {twice});
    const Block through = make("backward of squares", whole, {spread, power}, 2);
    drop(spread, twice, power, through);
    if (!narrow_) drop(of.input);
    to_.sweep(tokens_ * c_.hidden_size, 3 * whole);
    flow_ = beside != nullptr ? *beside : direct;
    if (!narrow_) return;
    drop(of.input);
    const Block narrowed = make("cast", stream(), {direct}, 2);
    drop(direct);
    if (beside != nullptr) add_to(*beside, narrowed);
    flow_ = beside != nullptr ? *beside : narrowed;
  }

  // In its place, where a checkpoint does not have it.
  void add_to(Block& sum, const Block& gradient) {
    if (sum.number == given_.number) sum = small("sum", stream(), {sum, gradient});
    drop(gradient);
  }

  // With what is computed again for it, whose result and its gradient are there until its end.
  void part_backward(bool first) {
    Layer its = layers_.back();
    if (layers_.size() > 1) layers_.pop_back();  // who does not hear of each layer hears of the same one again
    if (!again(Recompute::layers)) return layer_backward(its, first);
    its = computed_again([&] { return computed(its.before, its.unit); });
    const Block result = stream_;
    given_ = flow_;
    layer_backward(its, first);
    drop(given_, result);
    if (narrow_) drop(its.before);
  }

  void layer_backward(Layer& its, bool first) {
    Block after = flow_;
    mlp_backward(its);
    norm_backward(its.second, its.unit, &after);
    attention_backward(its, first);
    to_.completes_layer();
    norm_backward(its.first, its.unit, &after);
  }

  void mlp_backward(Layer& its) {
    const std::int64_t hidden = c_.hidden_size, inside = c_.intermediate_size;
    const Gradients down = product_backward(hidden, inside, flow_, its.inner, its.unit);
    drop(its.inner, down.weight);
    if (again(Recompute::selective)) computed_again([&] { gated(its); });
    const Block of_activated = make("backward of the gate", inner(), {down.input, its.up}, 2);
    const Block of_up = make("backward of the gate", inner(), {down.input, its.activated}, 2);
    if (!again(Recompute::selective)) drop(down.input);
    drop(its.up, its.activated);
    const Block of_gate = make("backward of silu", inner(), {of_activated, its.gate}, 2);
    drop(of_activated, its.gate);
    if (again(Recompute::selective)) drop(down.input, its.inner);
    const Gradients gate = product_backward(inside, hidden, of_gate, its.second.result, its.unit);
    drop(of_gate, gate.weight);
    const Gradients up = product_backward(inside, hidden, of_up, its.second.result, its.unit);
    drop(of_up, its.second.result);
    flow_ = make("sum", stream(), {gate.input, up.input}, 2);
    drop(gate.input, up.input, up.weight);
  }

  // From the gradient of a rotated block to those of its product.
  Gradients rotate_backward(std::int64_t width, const Layer& its, const Block& gradient, bool last) {
    const std::int64_t whole = bytes(width);
    const Block along = make("times cosines", whole, {gradient, cosines_});
    const Block across = make("times sines", whole, {gradient, sines_});
    drop(gradient);
    if (last && !again(Recompute::layers)) drop(cosines_, sines_);
    const Block half = make("negative", whole / 2, {across});
    const Block turned = make("turned halves", whole, {across, half});
    drop(across, half, along);
    to_.sweep(whole / size_, 3 * whole);
    const Gradients of = product_backward(width, c_.hidden_size, turned, its.first.result, its.unit);
    drop(turned);
    return of;
  }

  void attention_backward(const Layer& its, bool first) {
    const std::int64_t hidden = c_.hidden_size;
    const Attended& of = its.attended;
    const Gradients projected = product_backward(hidden, query_width(), flow_, of.result, its.unit);
    drop(projected.weight);
    runs("backward of attention", {projected.input, of.query, of.key, of.value, of.result, of.sums});
    const Block query = hold(queries()), key = hold(keys()), value = hold(keys());
    to_.scratch(attention_room(2));
    to_.attention(2.5 * attention_flops(), true);
    drop(projected.input, of.query, of.result, of.key, of.value, of.sums);
    const Gradients of_query = rotate_backward(query_width(), its, query, false);
    drop(of_query.weight);
    const Gradients of_key = rotate_backward(key_width(), its, key, first);
    flow_ = make("sum", stream(), {of_query.input, of_key.input}, 2);
    drop(of_query.input, of_key.input, of_key.weight);
    const Gradients of_value = product_backward(key_width(), hidden, value, its.first.result, its.unit);
    drop(value, its.first.result, of_value.input, of_value.weight);
    to_.sweep(tokens_ * hidden, 3 * stream());
  }

  void embed_backward() {
    const Block of_embedding = make("backward of the embedding", table(), {flow_}, 0);
    drop(flow_);
    if (!c_.tie_word_embeddings) {
      to_.completes_embedding();
      drop(of_embedding);
      return;
    }
    Block sum = of_table_;  // to which the other is added where nothing else has it
    if (!in_pieces()) {
      sum = make("sum", table(), {of_embedding, of_table_}, 2);
      drop(of_table_);
    }
    drop(of_embedding);
    to_.completes_embedding();
    drop(sum);
  }

  const models::LlamaConfig& c_;
  std::int64_t seq_;
  int norm_unit_ = 0, head_unit_ = 0, layer_ = 0;
  Block stream_;  // forward's, so far
  Block flow_;    // its gradient, or that of what was made of it
  Block given_;   // such as a checkpoint has while it computes
  Block cosines_, sines_;
  std::vector<Layer> layers_;  // whose backward is to come
  Normed last_;
  Block logarithms_, of_table_;
  std::vector<Block> to_end_;  // what is there until there is no graph
};

}  // namespace

void walk(const MicroBatch& work, StepListener& listener) {
  Walk(work, listener).run();
}

}  // namespace planner

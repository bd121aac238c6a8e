#include "planner/shape.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "zero/error.h"

namespace planner {
namespace {

using Dimensions = std::vector<std::int64_t>;

std::int64_t elements(const Dimensions& dimensions) {
  return std::accumulate(dimensions.begin(), dimensions.end(), std::int64_t{1}, std::multiplies<>());
}

// Adds parameters unit by unit; of a unit that occurs several times, those of the first.
class Builder {
 public:
  explicit Builder(const models::LlamaConfig& config) { shape_.config = config; }

  Builder& unit(std::string name, std::int64_t times = 1) {
    unit_ = std::move(name);
    shape_.repeats.push_back(times);
    return *this;
  }
  Builder& matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    return add({unit_ + name + ".weight", {rows, columns}});
  }
  Builder& norm(const std::string& name, std::int64_t size) {
    return add({.name = unit_ + name + ".weight", .shape = {size}, .norm = true});
  }
  Builder& embedding(std::int64_t rows, std::int64_t columns) {
    return add({.name = unit_ + ".weight", .shape = {rows, columns}, .embedding = true});
  }
  Builder& add(zero::ParameterInfo info) {
    shape_.parameters += shape_.repeats.back() * elements(info.shape);
    shape_.infos.push_back(std::move(info));
    shape_.units.push_back(unit_);
    return *this;
  }
  Shape take() { return std::move(shape_); }

 private:
  Shape shape_;
  std::string unit_;
};

void add_layers(Builder& builder, const models::LlamaConfig& config) {
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const std::int64_t query = config.num_attention_heads * config.head_size();
  const std::int64_t key_value = config.num_key_value_heads * config.head_size();
  builder.unit("model.layers.0", config.num_hidden_layers)
      .norm(".input_layernorm", hidden)
      .matrix(".self_attn.q_proj", query, hidden)
      .matrix(".self_attn.k_proj", key_value, hidden)
      .matrix(".self_attn.v_proj", key_value, hidden)
      .matrix(".self_attn.o_proj", hidden, query)
      .norm(".post_attention_layernorm", hidden)
      .matrix(".mlp.gate_proj", inner, hidden)
      .matrix(".mlp.up_proj", inner, hidden)
      .matrix(".mlp.down_proj", hidden, inner);
}

constexpr std::int64_t kHead = 128;           // elements of an attention head, and h / L
constexpr std::int64_t kVocabulary = 32000;   // of which only activations and time hear
constexpr std::int64_t kPositions = 1 << 20;  // no limit

std::int64_t rounded_to(double value, std::int64_t multiple) {
  return std::max<std::int64_t>(std::llround(value / static_cast<double>(multiple)), 1) * multiple;
}

models::LlamaConfig usual_proportions(std::int64_t parameters) {
  const auto psi = static_cast<double>(parameters);
  const std::int64_t layers = rounded_to(std::cbrt(psi / (12.0 * kHead * kHead)), 1);
  const std::int64_t hidden = rounded_to(std::sqrt(psi / (12.0 * static_cast<double>(layers))), kHead);
  return {.hidden_size = hidden,
          .intermediate_size = rounded_to(8.0 / 3.0 * static_cast<double>(hidden), kHead),
          .num_hidden_layers = layers,
          .num_attention_heads = hidden / kHead,
          .num_key_value_heads = hidden / kHead,
          .vocab_size = kVocabulary,
          .max_position_embeddings = kPositions};
}

// Rounded up.
std::int64_t over(std::int64_t size, int parts) {
  return (size + parts - 1) / parts;
}

// Whose heads and columns divide.
models::LlamaConfig even_part_of(models::LlamaConfig config, int ranks) {
  for (std::int64_t* const each :
       {&config.num_attention_heads, &config.num_key_value_heads, &config.intermediate_size, &config.vocab_size})
    *each = over(*each, ranks) * ranks;
  config.head_dim = kHead;
  return models::part_of(config, ranks);
}

// Each a matrix as wide as the layers are, and what is left of it.
void add_equal_units(Builder& builder, std::int64_t index, std::int64_t times, std::int64_t count,
                     std::int64_t columns) {
  const std::string name = "layers." + std::to_string(index);
  builder.unit(name, times);
  if (count >= columns) builder.add({.name = name + ".weight", .shape = {count / columns, columns}});
  if (count % columns != 0) builder.add({.name = name + ".rest", .shape = {count % columns}});
}

std::vector<std::string> sentences(const models::LlamaConfig& config) {
  const auto text = [](std::int64_t value) { return std::to_string(value); };
  return {"the shape: a decoder of usual proportions, with " + text(config.num_hidden_layers) +
              " equal layers of hidden size " + text(config.hidden_size) + ", which hold all parameters",
          "for activations and time: " + text(config.num_attention_heads) + " attention heads, an MLP of " +
              text(config.intermediate_size) + " and a vocabulary of " + text(config.vocab_size)};
}

}  // namespace

Shape shape_of(const models::LlamaConfig& whole, int tensor) {
  models::validate(whole, "the model");
  const models::LlamaConfig config = models::part_of(whole, tensor);
  Builder builder(config);
  builder.unit("model.embed_tokens").embedding(config.vocab_size, config.hidden_size);
  add_layers(builder, config);
  builder.unit("model.norm").norm("", config.hidden_size);
  if (!config.tie_word_embeddings) builder.unit("lm_head").matrix("", config.vocab_size, config.hidden_size);
  Shape shape = builder.take();
  shape.tensor = tensor;
  shape.of_model = models::parameter_count(whole);
  return shape;
}

Shape shape_of(std::int64_t parameters, int tensor) {
  if (parameters < 1) throw zero::ConfigError("a model has at least 1 parameter, not " + std::to_string(parameters));
  const models::LlamaConfig config = usual_proportions(parameters);
  const std::int64_t own = over(parameters, tensor), layers = std::min(config.num_hidden_layers, own);
  Builder builder(even_part_of(config, tensor));
  const std::int64_t equal = own / layers, last = layers - 1;
  if (last > 0) add_equal_units(builder, 0, last, equal, config.hidden_size);
  add_equal_units(builder, last, 1, equal + own % layers, config.hidden_size);
  Shape shape = builder.take();
  shape.assumed = sentences(config);
  shape.tensor = tensor;
  shape.of_model = parameters;
  return shape;
}

std::vector<zero::ParameterSpec> specs(const Shape& shape, const zero::Plan& plan) {
  std::vector<zero::ParameterSpec> result;
  result.reserve(shape.infos.size());
  for (std::size_t i = 0; i < shape.infos.size(); ++i) {
    const zero::ParameterInfo& info = shape.infos[i];
    result.push_back({.name = info.name,
                      .numel = elements(info.shape),
                      .dtype = plan.compute_dtype(),
                      .unit = shape.units[i],
                      .read_in_backward = !info.embedding});
  }
  return result;
}

zero::Trace order_of_use(const models::LlamaConfig& config, const zero::Layout& layout, zero::Repeats repeats) {
  repeats.resize(layout.units().size(), 1);
  std::vector<int> forward, backward;
  int occurrence = 0;
  for (std::size_t i = 0; i < repeats.size(); ++i)
    for (std::int64_t turn = 0; turn < repeats[i]; ++turn, ++occurrence) {
      if (layout.units()[i].length() > 0) forward.push_back(occurrence);
      if (layout.units()[i].read_in_backward()) backward.push_back(occurrence);
    }
  if (config.tie_word_embeddings) forward.insert(forward.end(), {0, occurrence - 1});
  const bool turns = !forward.empty() && !backward.empty() && forward.back() == backward.back();
  zero::Trace trace{std::move(forward)};
  trace.touches.insert(trace.touches.end(), backward.rbegin() + (turns ? 1 : 0), backward.rend());
  return trace;
}

}  // namespace planner

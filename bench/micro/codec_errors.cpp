// What codecs round off gradients, weights and what a step changes of weights: those of base/codec.h beside other ways
// to cut, scale and round, from a Llama after so many steps on a text. The error of an array is the root of the mean
// square of what is rounded off, in percent of that of the values.
//
//   codec_errors TEXT [model] [steps]
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "base/codec.h"
#include "device/kernels.h"
#include "models/data.h"
#include "models/llama.h"
#include "models/tokens.h"
#include "zero/zero.h"

namespace {

using Values = std::vector<float>;

// The codes of symmetric blocks are whole multiples of a scale: clipped ones from -(2^(b-1) - 1) to 2^(b-1) - 1; full
// ones have one more on the side of the largest magnitude. Those of asymmetric ones count from the least value on.
enum class Form { clipped, full, asymmetric };
// In which a scale, and a least value, is kept.
enum class Scale { power, bf16, fp16, fp32 };

struct Variant {
  int bits;
  Form form;
  Scale scale;
  std::int64_t block;
  bool stochastic = false;

  double bytes() const {
    const int head = scale == Scale::power ? 1 : scale == Scale::fp32 ? 4 : 2;
    return bits / 8.0 + static_cast<double>(form == Form::asymmetric ? 2 * head : head) / static_cast<double>(block);
  }
  std::string name() const {
    static constexpr const char* kForms[] = {"clipped", "full range", "asymmetric"};
    static constexpr const char* kScales[] = {"power of two", "bf16", "fp16", "fp32"};
    return std::to_string(bits) + " bits, " + kForms[static_cast<int>(form)] + ", " + kScales[static_cast<int>(scale)] +
           (stochastic ? ", stochastic" : "");
  }
};

float kept(float scale, Scale in) {
  if (in == Scale::power) return scale == 0 ? 0 : std::exp2(std::ceil(std::log2(scale)));
  if (in == Scale::fp32) return scale;
  return in == Scale::bf16 ? static_cast<float>(c10::BFloat16(scale)) : static_cast<float>(c10::Half(scale));
}

float rounded(float value, bool stochastic) {
  static std::mt19937 engine(1);
  return stochastic ? std::floor(value + std::generate_canonical<float, 24>(engine)) : std::nearbyint(value);
}

void through(const Variant& variant, const float* values, std::int64_t n, float* arrived) {
  const auto [least, most] = std::minmax_element(values, values + n);
  const float steps = static_cast<float>(1 << variant.bits), half = steps / 2;
  float low = -half, high = half - 1, from = 0, step = 0;
  if (variant.form == Form::asymmetric) {
    low = 0, high = steps - 1;
    from = kept(*least, variant.scale == Scale::power ? Scale::bf16 : variant.scale);
    step = kept((*most - *least) / high, variant.scale);
  } else if (variant.form == Form::full) {
    step = kept(std::max(-*least, *most) / half, variant.scale) * (*most > -*least ? -1.0F : 1.0F);
  } else {
    low = -high;
    step = kept(std::max(-*least, *most) / high, variant.scale);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const float code = step == 0 ? 0 : rounded((values[i] - from) / step, variant.stochastic);
    arrived[i] = from + std::clamp(code, low, high) * step;
  }
}

double error_of(const Values& values, const Values& arrived) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += std::pow(static_cast<double>(arrived[i]) - values[i], 2);
    size += std::pow(static_cast<double>(values[i]), 2);
  }
  return 100 * std::sqrt(error / size);
}

// fp16 has not the range of gradients: its scales are of values that were divided by the array's largest.
double error_of(const Variant& variant, Values values) {
  const float largest = std::abs(*std::ranges::max_element(values, {}, [](float each) { return std::abs(each); }));
  for (float& each : values) each /= largest;
  Values arrived(values.size());
  const auto count = static_cast<std::int64_t>(values.size());
  for (std::int64_t begin = 0; begin < count; begin += variant.block)
    through(variant, values.data() + begin, std::min(variant.block, count - begin), arrived.data() + begin);
  return error_of(values, arrived);
}

Values through(zero::Wire wire, const Values& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(zero::bytes_of_codes(wire, count)));
  Values arrived(values.size());
  run_on_host(zero::Encode{values.data(), zero::Dtype::f32, codes.data(), count, wire});
  run_on_host(zero::Decode{codes.data(), arrived.data(), zero::Dtype::f32, count, wire});
  return arrived;
}

Values joined(const std::vector<torch::Tensor>& tensors) {
  Values all;
  for (const torch::Tensor& each : tensors) {
    const torch::Tensor flat = each.detach().reshape(-1).contiguous();
    all.insert(all.end(), flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel());
  }
  return all;
}

constexpr int kLast = 40;  // steps whose gradients are kept

struct Recorded {
  std::vector<Values> gradients;  // of the last steps
  Values weights, changes;
};

Recorded record(const std::string& text, const std::string& preset, int steps) {
  torch::manual_seed(0);
  models::Llama model(models::llama_preset(preset));
  const models::Corpus corpus(models::TokenSource::open(text), {.vocab = model->config().vocab_size});
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  Recorded result;
  for (int step = 0; step <= steps; ++step) {
    optimizer.zero_grad();
    const models::Batch batch = corpus.batch(step, 8, 64);
    model->loss(batch.inputs, batch.targets).backward();
    if (step > steps - kLast) {
      std::vector<torch::Tensor> gradients;
      for (const torch::Tensor& each : model->parameters()) gradients.push_back(each.grad());
      result.gradients.push_back(joined(gradients));
    }
    if (step == steps) result.weights = joined(model->parameters());
    optimizer.step();
  }
  result.changes = joined(model->parameters());
  for (std::size_t i = 0; i < result.changes.size(); ++i) result.changes[i] -= result.weights[i];
  return result;
}

// Of AdamW's average of gradients, where what is rounded off is fed back: of the newest error so much, of those before
// the rest.
double error_of_average(zero::Wire wire, const std::vector<Values>& gradients, float newest) {
  constexpr float kBefore = 0.9F;
  Values average(gradients[0].size()), arrived_average(average), errors(average);
  for (const Values& gradient : gradients) {
    Values sent = gradient;
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] += errors[i];
    const Values arrived = through(wire, sent);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (newest > 0) errors[i] = newest * (sent[i] - arrived[i]) + (1 - newest) * errors[i];
      average[i] = kBefore * average[i] + (1 - kBefore) * gradient[i];
      arrived_average[i] = kBefore * arrived_average[i] + (1 - kBefore) * arrived[i];
    }
  }
  return error_of(average, arrived_average);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "codec_errors TEXT [model] [steps]\n");
    return 2;
  }
  const Recorded recorded = record(argv[1], argc > 2 ? argv[2] : "micro", argc > 3 ? std::atoi(argv[3]) : 200);
  const auto row = [&](const std::string& name, std::int64_t block, double bytes, const auto& error) {
    std::printf("| %s | %lld | %.3f | %.3f | %.3f | %.3f |\n", name.c_str(), static_cast<long long>(block), bytes,
                error(recorded.gradients.back()), error(recorded.weights), error(recorded.changes));
  };
  const auto codecs = {zero::Wire::bf16_codes, zero::Wire::fp8, zero::Wire::int8, zero::Wire::int4,
                       zero::Wire::int4_hadamard};
  std::printf("| | block | bytes a value | gradients | weights | changes |\n|---|---|---|---|---|---|\n");
  for (const zero::Wire wire :
       {zero::Wire::bf16_codes, zero::Wire::fp8, zero::Wire::int8, zero::Wire::int4, zero::Wire::int4_hadamard})
    row("`" + std::string(zero::name(wire)) + "`", zero::block_of(wire),
        static_cast<double>(zero::bytes_of_codes(wire, 1 << 20)) / (1 << 20),
        [&](const Values& values) { return error_of(values, through(wire, values)); });
  for (const int bits : {8, 4})
    for (const auto& [form, scale] : {std::pair(Form::clipped, Scale::power),
                                      {Form::clipped, Scale::bf16},
                                      {Form::full, Scale::bf16},
                                      {Form::full, Scale::fp32},
                                      {Form::asymmetric, Scale::fp16}})
      for (const std::int64_t block : {32, 128, 256, 2048})
        for (const bool stochastic : {false, true}) {
          if (stochastic && (form != Form::full || scale != Scale::bf16)) continue;
          const Variant variant{bits, form, scale, block, stochastic};
          row(variant.name(), block, variant.bytes(), [&](const Values& values) { return error_of(variant, values); });
        }
  std::printf(
      "\n| AdamW's average, fed back of the newest error | none | .2 | .5 | .8 | all |\n|---|---|---|---|---|---|\n");
  for (const zero::Wire wire : codecs) {
    std::printf("| `%s` |", std::string(zero::name(wire)).c_str());
    for (const float newest : {0.0F, 0.2F, 0.5F, 0.8F, 1.0F})
      std::printf(" %.3f |", error_of_average(wire, recorded.gradients, newest));
    std::printf("\n");
  }
}

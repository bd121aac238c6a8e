// The update of every optimizer and moment format beside the bandwidth of a triad, in one interleaved run.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "backwards/accounts.h"
#include "base/blockwise.h"
#include "bench/timing.h"
#include "device/kernels.h"
#include "device/torch/dtypes.h"
#include "partition/moments.h"

namespace {

struct Case {
  const char* name;
  zero::Optimizer optimizer;
  zero::Precision precision;
  double least;  // of the triad's bandwidth; 0: no line to meet
};

const zero::AdamW kBf16{.format = zero::MomentFormat::bf16}, kBlock8{.format = zero::MomentFormat::block8};

const std::vector<Case>& cases() {
  using enum zero::Precision;
  static const std::vector<Case> all{{"SGD", zero::Sgd{}, fp32, 0.75},
                                     {"momentum", zero::Sgd{.momentum = 0.9}, fp32, 0.75},
                                     {"AdaGrad", zero::AdaGrad{}, fp32, 0.75},
                                     {"RMSProp", zero::RmsProp{}, fp32, 0.75},
                                     {"RMSProp, centred", zero::RmsProp{.eps = 1e-2, .centered = true}, fp32, 0.75},
                                     {"Adam", zero::Adam{}, fp32, 0.75},
                                     {"AdamW", zero::AdamW{}, fp32, 0.75},
                                     {"AMSGrad", zero::AdamW{.amsgrad = true}, fp32, 0.75},
                                     {"Lion", zero::Lion{}, fp32, 0.75},
                                     {"AdamW", zero::AdamW{}, bf16, 0.9},
                                     {"AdamW", zero::AdamW{}, fp16, 0.9},
                                     {"AdamW, bf16 moments", kBf16, bf16, 0},
                                     {"AdamW, 8-bit moments", kBlock8, bf16, 0},
                                     {"AdamW", zero::AdamW{}, bf16_sr, 0.9},
                                     {"AdamW", zero::AdamW{}, bf16_kahan, 0.9},
                                     {"AdamW, bf16 moments", kBf16, bf16_sr, 0},
                                     {"AdamW, bf16 moments", kBf16, bf16_kahan, 0}};
  return all;
}

// What the engine keeps for a stretch of parameters, in memory as it takes it.
class State {
 public:
  State(const Case& c, std::int64_t count) : case_(c), plan_(zero::Plan::ddp().precision(c.precision)), count_(count) {
    gradient_ = fill(array(zero::Dtype::f32), 1e-2);
    main_ = fill(array(zero::Dtype::f32), 1);
    stored_ = fill(array(dtype()), 1);
    rest_ = fill(array(dtype()), 0);
    const zero::Dtype moment = zero::moment_dtype(c.optimizer, dtype());
    for (int i = 0; i < zero::moments(c.optimizer); ++i) {
      moments_.push_back(fill(array(moment), moment == zero::Dtype::u8 ? 127 : 1e-2));
      scales_.push_back(fill(array(zero::Dtype::f32), 1e-2));
    }
  }

  void update() {
    ++step_;
    zero::run_on_host(zero::Update{case_.optimizer, {.scale = 0.5, .lr = 1e-3, .step = step_}, range()});
  }

  // Read and written, a parameter.
  double bytes() const {
    const bool main = dtype() == zero::Dtype::f32 || plan_.remainder(dtype()) == zero::Remainder::main_weights;
    double total = 4 + (main ? 8 : 0);
    if (dtype() != zero::Dtype::f32) total += main ? 2 : 4;
    if (plan_.remainder(dtype()) == zero::Remainder::kept) total += 4;
    const zero::Dtype moment = zero::moment_dtype(case_.optimizer, dtype());
    return total + 2.0 * static_cast<double>(zero::size_of(moment)) * zero::moments(case_.optimizer);
  }

 private:
  zero::Dtype dtype() const { return plan_.compute_dtype(); }

  zero::Buffer array(zero::Dtype dtype) {
    return accounts_.buffer(zero::Owner::optimizer, count_, zero::scalar_type(dtype));
  }
  static zero::Buffer fill(zero::Buffer buffer, double value) {
    buffer.tensor().fill_(value);
    return buffer;
  }

  zero::UpdateRange range() {
    zero::UpdateRange range;
    const bool narrow = dtype() != zero::Dtype::f32;
    range.dtype = dtype();
    range.count = count_;
    range.gradient = gradient_.data();
    range.main = main_.data();
    range.parameter = narrow ? stored_.data() : nullptr;
    range.compensation = rest_.data();
    range.remainder = narrow ? plan_.remainder(dtype()) : zero::Remainder::main_weights;
    for (std::size_t i = 0; i < moments_.size(); ++i) {
      range.moments[i] = moments_[i].data();
      range.scales[i] = static_cast<float*>(scales_[i].data());
    }
    return range;
  }

  const Case& case_;
  zero::Plan plan_;
  std::int64_t count_;
  zero::Accounts accounts_{torch::kCPU, zero::Communicator(), zero::Communicator()};
  zero::Buffer gradient_, main_, stored_, rest_;
  std::vector<zero::Buffer> moments_, scales_;
  std::int64_t step_ = 0;
};

// Both moments of AdamW out of codes and back, as often as `count` parameters need it, on blocks that stay in the
// cache.
class Conversions {
 public:
  explicit Conversions(std::int64_t count) : blocks_(count / zero::kStateBlock) {
    for (std::size_t i = 0; i < codes_.size(); ++i) codes_[i] = static_cast<std::uint8_t>(i);
  }
  void run() {
    for (std::int64_t block = 0; block < blocks_; ++block)
      for (const zero::Signs signs : {zero::Signs::both, zero::Signs::positive}) {
        zero::dequantize(codes_.data(), 1.0F, signs, values_.data(), zero::kStateBlock);
        zero::quantize(values_.data(), signs, codes_.data(), zero::kStateBlock);
      }
  }

 private:
  std::int64_t blocks_;
  std::array<std::uint8_t, zero::kStateBlock> codes_;
  std::array<float, zero::kStateBlock> values_;
};

void run(std::int64_t count, int rounds) {
  std::vector<std::unique_ptr<State>> states;
  bench::Contest contest;
  for (const Case& c : cases()) {
    State* state = states.emplace_back(std::make_unique<State>(c, count)).get();
    contest.add(std::string(c.name) + ", " + std::string(name(c.precision)), [state] { state->update(); });
  }
  zero::Accounts accounts{torch::kCPU, zero::Communicator(), zero::Communicator()};
  std::array<zero::Buffer, 3> arrays;
  for (zero::Buffer& array : arrays) {
    array = accounts.buffer(zero::Owner::optimizer, count, torch::kFloat);
    array.tensor().fill_(1);
  }
  const auto data = [&](std::size_t i) { return static_cast<float*>(arrays[i].data()); };
  const std::size_t triad = contest.add("triad", [&] { bench::triad(data(0), data(1), data(2), 0.5F, count); });
  Conversions conversions(count);
  const std::size_t converted = contest.add("conversions", [&] { conversions.run(); });
  contest.run(rounds);

  std::printf("| update | bytes a parameter | ns a parameter | GB/s | of the triad's |\n|---|---|---|---|---|\n");
  for (std::size_t i = 0; i <= triad; ++i) {
    const double bytes = i == triad ? 12 : states[i]->bytes();
    const double seconds = contest.seconds(i) / static_cast<double>(count);
    std::printf("| %s | %.0f | %.2f | %.1f | %.2f |\n", contest.name(i).c_str(), bytes, 1e9 * seconds,
                1e-9 * bytes / seconds, contest.ratio({triad}, {i}) * bytes / 12);
  }
  std::printf("\nOf the update with 8-bit moments, %.2f ns a parameter are conversions of what lies in the cache.\n",
              1e9 * contest.seconds(converted) / static_cast<double>(count));
  for (std::size_t i = 0; i < cases().size(); ++i)
    if (cases()[i].least > 0)
      bench::accept(contest.name(i) + ": bandwidth over the triad's",
                    contest.ratio({triad}, {i}) * states[i]->bytes() / 12, cases()[i].least);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Updates of every optimizer beside a triad.");
  std::int64_t count = std::int64_t{1} << 23;
  int rounds = 11;
  app.add_option("--parameters", count)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  const torch::NoGradGuard no_grad;
  run(count, rounds);
}

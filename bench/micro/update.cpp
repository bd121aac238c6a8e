// The optimizer's step over a shard, our two passes (norm, update) against LibTorch's optimizers and a
// triad. One thread; the contenders take turns. In bf16 the main weights are fp32 and the model's
// parameters and gradients bf16: LibTorch's kernel wants one dtype, so casts go around it.
//
//   update [elements] [rounds]
#include "device/kernels.h"

#include <torch/torch.h>

#include <cstdlib>
#include <span>

#include "backwards/accounts.h"
#include "base/exact_sum.h"
#include "bench/timing.h"

namespace {

using torch::Tensor;

constexpr double kMaxNorm = 1;
const zero::AdamW kAdamW{.lr = 1e-3, .weight_decay = 0.1};

struct Case {
  std::int64_t elements;
  std::int64_t tensors;
  bool bf16;

  std::int64_t length() const { return elements / tensors; }
  std::string name() const {
    return std::string(bf16 ? "bf16" : "fp32") + ", " + std::to_string(elements) + " parameters in " +
           std::to_string(tensors) + (tensors == 1 ? " tensor" : " tensors");
  }
};

Tensor flat(const Case& c, int seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return torch::randn({c.elements}) * 0.02;
}

// Memory as the engine takes it.
struct Memory {
  zero::Accounts accounts{torch::kCPU, zero::Communicator(), zero::Communicator()};

  zero::Buffer buffer(const Case& c, torch::ScalarType dtype = torch::kFloat) {
    return accounts.buffer(zero::Owner::optimizer, c.elements, dtype);
  }
};

float* data(const zero::Buffer& buffer) {
  return static_cast<float*>(buffer.data());
}

// The engine's view: flat arrays in memory of its own, updated tensor by tensor.
class Ours {
 public:
  explicit Ours(const Case& c) : case_(c) {
    main_.tensor().copy_(flat(c, 1));
    const Tensor gradient = flat(c, 2);
    gradient_.tensor().copy_(c.bf16 ? gradient.to(torch::kBFloat16) : gradient);
    for (const zero::Buffer* zeros : {&first_, &second_, &parameter_}) zeros->tensor().zero_();
  }

  void norm() {
    zero::ExactSum squares;
    std::int64_t nonfinite = 0;
    const std::span gradient(data(gradient_), static_cast<std::size_t>(case_.elements));
    zero::sum_of_squares(gradient, squares, nonfinite);
    scale_ = std::min(1.0, kMaxNorm / (std::sqrt(squares.value()) + 1e-6));
  }

  void update() {
    ++step_;
    for (std::int64_t t = 0; t < case_.tensors; ++t)
      zero::run_on_host(zero::Update{kAdamW, {scale_, kAdamW.lr, step_}, range(t * case_.length())});
  }

  const Tensor& main() const { return main_.tensor(); }

 private:
  zero::UpdateRange range(std::int64_t begin) {
    zero::UpdateRange range;
    range.main = data(main_) + begin;
    range.gradient = data(gradient_) + begin;
    range.moments[0] = data(first_) + begin;
    range.moments[1] = data(second_) + begin;
    if (case_.bf16) range.parameter = parameter_.tensor().data_ptr<at::BFloat16>() + begin;
    range.dtype = case_.bf16 ? zero::Dtype::bf16 : zero::Dtype::f32;
    range.count = case_.length();
    return range;
  }

  Case case_;
  Memory memory_;
  zero::Buffer main_ = memory_.buffer(case_), gradient_ = memory_.buffer(case_), first_ = memory_.buffer(case_),
               second_ = memory_.buffer(case_), parameter_ = memory_.buffer(case_, torch::kBFloat16);
  double scale_ = 1;
  std::int64_t step_ = 0;
};

// LibTorch's view: a list of parameters with their gradients.
class Theirs {
 public:
  explicit Theirs(const Case& c) : bf16_(c.bf16) {
    const Tensor values = flat(c, 1), gradients = flat(c, 2);
    for (std::int64_t t = 0; t < c.tensors; ++t) {
      const auto part = [&](const Tensor& whole) { return whole.narrow(0, t * c.length(), c.length()).clone(); };
      main_.push_back(part(values));
      main_.back().mutable_grad() = part(gradients);
      if (!bf16_) continue;
      model_.push_back(main_.back().to(torch::kBFloat16));
      model_.back().mutable_grad() = main_.back().grad().to(torch::kBFloat16);
    }
  }

  void clip() { torch::nn::utils::clip_grad_norm_(bf16_ ? model_ : main_, kMaxNorm); }
  void cast_gradients() {
    for (std::size_t i = 0; i < model_.size(); ++i) main_[i].mutable_grad().copy_(model_[i].grad());
  }
  void cast_parameters() {
    for (std::size_t i = 0; i < model_.size(); ++i) model_[i].copy_(main_[i]);
  }

  const std::vector<Tensor>& main() const { return main_; }

 private:
  bool bf16_;
  std::vector<Tensor> main_, model_;
};

class Fused : public Theirs {
 public:
  explicit Fused(const Case& c) : Theirs(c) {
    for (const Tensor& parameter : main()) {
      first_.push_back(torch::zeros_like(parameter));
      second_.push_back(torch::zeros_like(parameter));
      gradients_.push_back(parameter.grad());
      steps_.push_back(torch::zeros({}));
    }
  }

  void step() {
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(main(), gradients_, first_, second_, {}, steps_, kAdamW.lr, kAdamW.beta1, kAdamW.beta2,
                      kAdamW.weight_decay, kAdamW.eps, false, false);
  }

 private:
  std::vector<Tensor> first_, second_, gradients_, steps_;
};

class Plain : public Theirs {
 public:
  explicit Plain(const Case& c)
      : Theirs(c), optimizer_(main(), torch::optim::AdamWOptions(kAdamW.lr).weight_decay(kAdamW.weight_decay)) {}
  void step() { optimizer_.step(); }

 private:
  torch::optim::AdamW optimizer_;
};

double largest_difference(const Ours& ours, const Theirs& theirs) {
  return (ours.main() - torch::cat(theirs.main())).abs().max().item<double>();
}

// The passes, in the order of their turns.
enum Pass : std::size_t { norm, update, clip, widen, fused, narrow, adamw, triad };
constexpr const char* kNames[] = {"our norm",
                                  "our update",
                                  "clip_grad_norm_",
                                  "cast of the gradients",
                                  "_fused_adamw_",
                                  "cast of the parameters",
                                  "torch::optim::AdamW",
                                  "triad"};

// Read and written, a parameter; 0: not known.
int bytes(const Case& c, std::size_t pass) {
  switch (pass) {
    case norm: return 4;
    case update: return c.bf16 ? 30 : 28;
    case triad: return 12;
    default: return 0;
  }
}

void print(const Case& c, const bench::Contest& contest) {
  std::printf("\n%s\n\n| pass | ms | bytes a parameter | GB/s |\n|---|---|---|---|\n", c.name().c_str());
  for (std::size_t pass = 0; pass < contest.size(); ++pass) {
    if (!c.bf16 && (pass == widen || pass == narrow)) continue;
    const double seconds = contest.seconds(pass);
    const int traffic = bytes(c, pass);
    std::printf("| %s | %.2f |", contest.name(pass).c_str(), 1e3 * seconds);
    if (traffic > 0) std::printf(" %d | %.1f |\n", traffic, 1e-9 * traffic * static_cast<double>(c.elements) / seconds);
    if (traffic == 0) std::printf(" | |\n");
  }
}

void judge(const Case& c, const bench::Contest& contest) {
  bench::accept("update: times as fast as torch::optim::AdamW", contest.ratio({adamw}, {update}), 5);
  bench::accept("norm and update: times as fast as torch::optim::AdamW, which does not clip",
                contest.ratio({adamw}, {norm, update}), 5);
  bench::accept("norm and update: times as fast as the fused kernel with its clip and casts",
                contest.ratio({clip, widen, fused, narrow}, {norm, update}), 1.2);
  for (const Pass pass : {norm, update})
    bench::accept(std::string(kNames[pass]) + ": bandwidth over the triad's",
                  contest.ratio({triad}, {pass}) * bytes(c, pass) / bytes(c, triad), 0.9);
}

void run(const Case& c, int rounds) {
  Ours ours(c);
  Fused theirs(c);
  Plain plain(c);
  Memory memory;
  const zero::Buffer out = memory.buffer(c), left = memory.buffer(c), right = memory.buffer(c);
  for (const zero::Buffer* buffer : {&out, &left, &right}) buffer->tensor().fill_(1);
  const auto add_up = [&] { bench::triad(data(out), data(left), data(right), 0.5f, c.elements); };
  const std::function<void()> work[] = {[&] { ours.norm(); },   [&] { ours.update(); },
                                        [&] { theirs.clip(); }, [&] { theirs.cast_gradients(); },
                                        [&] { theirs.step(); }, [&] { theirs.cast_parameters(); },
                                        [&] { plain.step(); },  add_up};
  bench::Contest contest;
  for (std::size_t pass = 0; pass < std::size(work); ++pass) contest.add(kNames[pass], work[pass]);
  contest.run(rounds);
  print(c, contest);
  std::printf("\nlargest difference from the fused kernel's weights: %.1e\n", largest_difference(ours, theirs));
  judge(c, contest);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t elements = argc > 1 ? std::atoll(argv[1]) : 30 << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  torch::NoGradGuard no_grad;
  torch::set_num_threads(1);
  std::printf("medians of %d rounds\n", rounds);
  for (const bool bf16 : {false, true})
    for (const std::int64_t tensors : {1, 64}) run({elements, tensors, bf16}, rounds);
}

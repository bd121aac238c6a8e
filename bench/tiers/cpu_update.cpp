// The update of an offloaded optimizer on the host's cores: fp32 main weights and two moments, bf16 gradients in, bf16
// parameters out. libzero's, and torch::optim::AdamW with the casts that it needs. cpu_update.py has DeepSpeed's
// CPUAdam take turns with them: with --serve, each line of the standard input, "libzero" or "torch", is answered by the
// seconds of one such update.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <string>

#include "backwards/accounts.h"
#include "bench/timing.h"
#include "device/kernels.h"

namespace {

using torch::Tensor;

const zero::AdamW kAdamW{.lr = 1e-3, .weight_decay = 0.1};

// Of both contenders, the same: what is updated is in `main`, and what the model gets in `parameter`.
struct Job {
  std::int64_t elements;
  Tensor values = torch::randn({elements}, torch::TensorOptions().requires_grad(false)) * 0.02;
  Tensor gradient = (torch::randn({elements}) * 0.02).to(torch::kBFloat16);
};

// Memory as the engine takes it.
class Ours {
 public:
  explicit Ours(const Job& job) : job_(job) {
    main_.tensor().copy_(job.values);
    for (const zero::Buffer* zeros : {&first_, &second_, &parameter_}) zeros->tensor().zero_();
  }

  void update() {
    zero::UpdateRange range;
    range.dtype = zero::Dtype::bf16;
    range.main = main_.data();
    range.gradient = job_.gradient.const_data_ptr();
    range.narrow_gradient = true;
    range.moments = {first_.data(), second_.data()};
    range.parameter = parameter_.data();
    range.count = job_.elements;
    zero::run_on_host(zero::Update{kAdamW, {.scale = 1, .lr = kAdamW.lr, .step = ++step_}, range});
  }
  Tensor parameter() const { return parameter_.tensor(); }

 private:
  zero::Buffer buffer(torch::ScalarType dtype) {
    return accounts_.buffer(zero::Owner::optimizer, job_.elements, dtype);
  }

  const Job& job_;
  zero::Accounts accounts_{torch::kCPU, zero::Communicator(), zero::Communicator()};
  zero::Buffer main_ = buffer(torch::kFloat), first_ = buffer(torch::kFloat), second_ = buffer(torch::kFloat),
               parameter_ = buffer(torch::kBFloat16);
  std::int64_t step_ = 0;
};

class Theirs {
 public:
  explicit Theirs(const Job& job)
      : job_(job),
        main_(job.values.clone()),
        parameter_(main_.to(torch::kBFloat16)),
        optimizer_({main_}, torch::optim::AdamWOptions(kAdamW.lr).weight_decay(kAdamW.weight_decay)) {
    main_.mutable_grad() = torch::empty_like(main_);
  }

  void update() {
    main_.mutable_grad().copy_(job_.gradient);
    optimizer_.step();
    parameter_.copy_(main_);
  }
  const Tensor& parameter() const { return parameter_; }

 private:
  const Job& job_;
  Tensor main_, parameter_;
  torch::optim::AdamW optimizer_;
};

void serve(Ours& ours, Theirs& theirs) {
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = bench::Clock::now();
    line == "libzero" ? ours.update() : theirs.update();
    std::printf("%.9f\n", bench::seconds_since(start));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Updates of an offloaded optimizer.");
  std::int64_t elements = std::int64_t{64} << 20;
  int rounds = 9, threads = 1;
  bool serves = false;
  app.add_option("--elements", elements)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--threads", threads, "of torch")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--serve", serves);
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(threads);
  const torch::NoGradGuard no_grad;

  const Job job{elements};
  Ours ours(job);
  Theirs theirs(job);
  if (serves) {
    serve(ours, theirs);
    return 0;
  }
  bench::Contest contest;
  const std::size_t update = contest.add("libzero", [&] { ours.update(); });
  const std::size_t torch = contest.add("torch::optim::AdamW with casts", [&] { theirs.update(); });
  contest.run(rounds);
  std::printf("%lld parameters, medians of %d rounds, %d threads\n", static_cast<long long>(elements), rounds, threads);
  for (std::size_t i = 0; i < contest.size(); ++i)
    std::printf("%-32s %8.2f ms  %6.3f ns a parameter\n", contest.name(i).c_str(), 1e3 * contest.seconds(i),
                1e9 * contest.seconds(i) / static_cast<double>(elements));
  std::printf("largest difference of a parameter: %.1e\n",
              (ours.parameter().to(torch::kFloat) - theirs.parameter().to(torch::kFloat)).abs().max().item<double>());
  bench::accept("times as fast as torch::optim::AdamW", contest.ratio({torch}, {update}), 5);
}

// Checkpoints of a Llama's layers, or of its SwiGLUs alone, beside budgets for activations with the same peak: training
// steps in turn, each in an engine of its own, on one rank and one thread.
//
//   activation_checkpoints [preset] [precision] [rounds] [batch] [sequence]
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "memory/torch/arena_allocator.h"
#include "models/llama.h"
#include "partition/plan_settings.h"
#include "zero/zero.h"

namespace {

struct Work {
  models::LlamaConfig config;
  zero::PlanSettings settings;
  torch::Tensor inputs, targets;
};

struct Contender {
  Contender(const Work& its_work, models::Recompute recompute, std::int64_t budget)
      : work(its_work), model(computing_again(work.config, recompute)) {
    zero::Plan plan = work.settings.plan(zero::Plan::zero3());
    if (budget > 0) plan = plan.activation_budget({.bytes = budget});
    engine = std::make_unique<zero::Engine>(*model, zero::World(), plan, zero::AdamW{.lr = 3e-4});
    for (int i = 0; i < 4; ++i) step();  // two are recorded, one is compared
  }
  static models::LlamaConfig computing_again(models::LlamaConfig config, models::Recompute recompute) {
    config.activations.recompute = recompute;
    return config;
  }
  void step() {
    engine->backward(model->loss(work.inputs, work.targets));
    loss = engine->step().loss;
  }
  std::int64_t peak() const { return engine->ledger()[zero::Owner::activation].peak; }

  const Work& work;
  models::Llama model;
  std::unique_ptr<zero::Engine> engine;
  double loss = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const std::int64_t batch = std::atoi(argument(4, "8").c_str()), sequence = std::atoi(argument(5, "256").c_str());
  torch::set_num_threads(1);
  zero::use_arena();
  Work work{models::llama_preset(argument(1, "small")), {}, {}, {}};
  work.settings.set("precision", argument(2, "fp32"));
  const torch::Tensor tokens = torch::randint(0, work.config.vocab_size, {batch, sequence + 1});
  work.inputs = tokens.slice(1, 0, sequence).contiguous();
  work.targets = tokens.slice(1, 1).contiguous();

  bench::Contest contest;
  std::vector<std::unique_ptr<Contender>> all;
  const auto add = [&](models::Recompute recompute, std::int64_t budget) {
    torch::manual_seed(0);
    all.push_back(std::make_unique<Contender>(work, recompute, budget));
    contest.add("step", [one = all.back().get()] { one->step(); });
  };
  add(models::Recompute::none, 0);
  const std::vector<models::Recompute> kinds{models::Recompute::layers, models::Recompute::selective};
  for (const models::Recompute kind : kinds) {
    add(kind, 0);
    add(models::Recompute::none, all.back()->peak());
  }
  contest.run(std::atoi(argument(3, "7").c_str()));

  std::printf("%s, %s, batch %ld x %ld; whole %ld bytes, step %.3f s\n", argument(1, "small").c_str(),
              argument(2, "fp32").c_str(), batch, sequence, all[0]->peak(), contest.seconds({0}));
  std::printf("checkpoints  bytes        step   budget's bytes  step   budget/checkpoints (lowest to highest)  loss\n");
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const std::size_t checkpoints = 1 + 2 * i, budget = checkpoints + 1;
    const std::vector<double> ratios = contest.ratios({budget}, {checkpoints});
    std::printf("%-10s  %11ld  %.3f  %11ld     %.3f  %.3f (%.3f to %.3f)   %s\n",
                std::string(models::name(kinds[i])).c_str(), all[checkpoints]->peak(),
                contest.ratio({checkpoints}, {0}), all[budget]->peak(), contest.ratio({budget}, {0}),
                bench::median(ratios), ratios.front(), ratios.back(),
                all[checkpoints]->loss == all[budget]->loss ? "the same" : "another");
  }
}

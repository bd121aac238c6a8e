// What a budget for activations costs: training steps of one model on one rank under zero3, within shares of what its
// activations take, against the same without a budget. All take their steps in turn, each with an engine of its own.
//
//   activation_budgets [preset] [precision] [rounds] [batch] [sequence] [plan's settings, NAME=VALUE] [shares, percent]
//
// Settings come before shares: activation_budgets small bf16 7 8 256 offload=activation=disk 50 25. Disks are in the
// folder that TMPDIR names. loss_pieces=8: within budgets the loss is computed in so many; shares are of what the model
// takes without either.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "models/llama.h"
#include "partition/plan_settings.h"
#include "zero/zero.h"

namespace {

struct Work {
  models::LlamaConfig config;
  torch::Tensor inputs, targets;
};

models::LlamaConfig with_pieces(models::LlamaConfig config, std::int64_t loss_pieces) {
  config.activations.loss_pieces = loss_pieces;
  return config;
}

// One that trains.
struct Contender {
  Contender(const Work& its_work, const zero::Plan& plan, std::int64_t loss_pieces)
      : work(its_work), model(with_pieces(work.config, loss_pieces)) {
    const char* const folder = std::getenv("TMPDIR");
    zero::Options options;
    options.disk.directories = {folder != nullptr ? folder : "/tmp"};
    engine = std::make_unique<zero::Engine>(*model, zero::World(), plan, zero::AdamW{.lr = 3e-4}, options);
  }
  void step() {
    engine->backward(model->loss(work.inputs, work.targets));
    loss = engine->step().loss;
  }

  const Work& work;
  models::Llama model;
  std::unique_ptr<zero::Engine> engine;
  double loss = 0;
};

std::unique_ptr<Contender> warm(const Work& work, const zero::Plan& plan, std::int64_t loss_pieces = 1) {
  torch::manual_seed(0);
  auto one = std::make_unique<Contender>(work, plan, loss_pieces);
  for (int i = 0; i < 4; ++i) one->step();  // two are recorded, one is compared
  return one;
}

// What one micro-batch takes without a budget.
std::int64_t unlimited_bytes(const Work& work, zero::PlanSettings settings) {
  settings.set("activation_budget", "100%");
  Contender one(work, settings.plan(zero::Plan::zero3()), /*loss_pieces=*/1);
  one.step();
  return one.engine->activations().unlimited_bytes;
}

double percent(std::int64_t bytes, std::int64_t of) {
  return 100 * static_cast<double>(bytes) / static_cast<double>(of);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const std::int64_t batch = std::atoi(argument(4, "8").c_str()), sequence = std::atoi(argument(5, "256").c_str());
  torch::set_num_threads(1);
  Work work{models::llama_preset(argument(1, "small")), {}, {}};
  const torch::Tensor tokens = torch::randint(0, work.config.vocab_size, {batch, sequence + 1});
  work.inputs = tokens.slice(1, 0, sequence).contiguous();
  work.targets = tokens.slice(1, 1).contiguous();

  zero::PlanSettings settings;
  settings.set("precision", argument(2, "fp32"));
  std::vector<std::string> shares;
  std::int64_t loss_pieces = 1;
  for (int i = 6; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos)
      shares.push_back(text);
    else if (text.starts_with("loss_pieces="))
      loss_pieces = std::atoi(text.c_str() + equals + 1);
    else
      settings.set(text.substr(0, equals), text.substr(equals + 1));
  }
  if (shares.empty()) shares = {"100", "75", "50", "25", "20"};

  bench::Contest contest;
  zero::PlanSettings plain = settings;
  for (const char* each : {"offload", "activations_in"}) plain.forget(each);
  std::vector<std::unique_ptr<Contender>> all;
  all.push_back(warm(work, plain.plan(zero::Plan::zero3())));
  const std::int64_t unlimited = unlimited_bytes(work, plain);
  for (const std::string& share : shares) {
    zero::PlanSettings within = settings;
    within.set("activation_budget", std::to_string(unlimited * std::atoi(share.c_str()) / 100));
    all.push_back(warm(work, within.plan(zero::Plan::zero3()), loss_pieces));
  }
  std::vector<std::size_t> parts;
  for (const auto& each : all) parts.push_back(contest.add("step", [&each] { each->step(); }));
  contest.run(std::atoi(argument(3, "7").c_str()));

  std::printf("%s, %s, batch %ld x %ld; step without a budget %.3f s, loss %.6f\n", argument(1, "small").c_str(),
              argument(2, "fp32").c_str(), batch, sequence, contest.seconds({parts[0]}), all[0]->loss);
  std::printf(
      "budget  peak    foretold       step (lowest to highest)  foretold  again of  moved MB  planned in  loss\n");
  for (std::size_t i = 1; i < all.size(); ++i) {
    const zero::ActivationReport report = all[i]->engine->activations();
    const std::vector<double> ratios = contest.ratios({parts[i]}, {parts[0]});
    std::printf("%5s%%  %5.2f%%  %+9ld bytes  %.3f (%.3f to %.3f)   %.3f     %4ld %4ld  %8.1f  %.3f s    %s\n",
                shares[i - 1].c_str(), percent(report.peak_bytes, unlimited), report.planned_bytes - report.peak_bytes,
                bench::median(ratios), ratios.front(), ratios.back(), 1 + report.recomputation_share,
                report.recomputations, report.operators, static_cast<double>(report.moved_bytes) / 1e6,
                report.planning_seconds,
                all[i]->loss == all[0]->loss ? "the same" : std::to_string(all[i]->loss).c_str());
  }
}

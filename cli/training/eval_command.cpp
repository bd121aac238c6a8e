#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <cmath>
#include <iostream>

#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/options/model.h"
#include "cli/report/format.h"
#include "cli/report/progress.h"
#include "cli/training/training_device.h"
#include "cli/training/work.h"
#include "models/data.h"
#include "models/schema.h"
#include "zero/deferred.h"

namespace cli {
namespace {

struct MeanLoss {
  double loss = 0;          // of a token
  std::int64_t tokens = 0;  // that were predicted
  double seconds = 0;
};

MeanLoss mean_loss(models::Llama& model, const models::Corpus& corpus, const EvalOptions& options, at::Device device) {
  const at::NoGradGuard no_grad;
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t batches = corpus.ordered_batches(options.batch, options.seq);
  Progress progress("eval", batches);
  MeanLoss result;
  double sum = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    const models::Batch batch = corpus.ordered_batch(i, options.batch, options.seq);
    const std::int64_t count = batch.targets.numel();
    const at::Tensor loss = model->loss(batch.inputs.to(device), batch.targets.to(device));
    sum += loss.item<double>() * static_cast<double>(count);
    result.tokens += count;
    result.loss = sum / static_cast<double>(result.tokens);
    progress.show(i + 1, "loss " + fixed(result.loss, 4));
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

void print(std::ostream& out, const Pretrained& pretrained, const MeanLoss& mean, at::Device device) {
  out << pretrained.source << ", " << with_separators(models::parameter_count(pretrained.config))
      << " parameters, fp32, on " << device << '\n'
      << "loss " << fixed(mean.loss, 6) << " a token over " << with_separators(mean.tokens) << " tokens, perplexity "
      << significant(std::exp(mean.loss), 6) << ", " << fixed(static_cast<double>(mean.tokens) / mean.seconds, 0)
      << " tokens/s" << std::endl;
}

std::string json_of(const EvalOptions& options, const Pretrained& pretrained, const MeanLoss& mean) {
  models::Json json = models::stamped(models::kEval);
  json["command"] = options.command;
  json["model"] = options.model;
  json["weights"] = pretrained.weights;
  json["parameters"] = models::parameter_count(pretrained.config);
  json["data"] = options.data;
  json["seq"] = options.seq;
  json["batch"] = options.batch;
  json["threads"] = options.threads;
  json["device"] = options.device;
  json["precision"] = "fp32";
  json["tokens"] = mean.tokens;
  json["loss"] = mean.loss;
  json["seconds"] = mean.seconds;
  return json.dump(2) + "\n";
}

}  // namespace

int evaluate(const EvalOptions& given) {
  const EvalOptions options = with_device(given);
  const at::Device device = device_of(zero::World(), options.device);
  const Pretrained pretrained = find_pretrained(options.model);
  const models::Corpus corpus(open_data(options.data, options.tokens), {.vocab = pretrained.config.vocab_size});
  at::set_num_threads(options.threads);
  models::Llama model = zero::deferred([&] { return models::Llama(pretrained.config); });
  model->eval();
  load_weights(model, pretrained.weights);
  model->to(device);
  zero::materialize(*model);
  const MeanLoss mean = mean_loss(model, corpus, options, device);
  print(is_standard_output(options.json) ? std::cerr : std::cout, pretrained, mean, device);
  if (!options.json.empty()) write_file(options.json, json_of(options, pretrained, mean));
  return 0;
}

}  // namespace cli

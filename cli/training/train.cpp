#include "cli/training/train.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>

#include "cli/options/checks.h"
#include "cli/options/recipe.h"
#include "cli/options/saving_options.h"
#include "cli/report/middle.h"
#include "cli/training/collect.h"
#include "cli/training/counted_steps.h"
#include "cli/training/memory.h"
#include "cli/training/prediction.h"
#include "cli/training/saving.h"
#include "cli/training/step_timeline.h"
#include "cli/training/training_device.h"
#include "models/llama.h"
#include "zero/deferred.h"
#include "zero/memory_analyzer.h"

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kEvaluationBatches = 16;

zero::Options engine_options(const RunOptions& options) {
  zero::Options result;
  result.clip = options.clip;
  result.seed = options.seed;
  result.groups = {zero::no_decay_on_norms_biases_embeddings()};
  result.schedule = make_schedule(options);
  if (options.fp32_norms) result.full_precision = zero::norms;
  if (options.fp8_scaling == "delayed") result.float8.scaling = zero::Scaling::delayed;
  if (options.tensor > 1) result.tensor = models::llama_cuts();
  result.disk.directories.assign(options.disk.begin(), options.disk.end());
  if (options.loss_scale > 0) result.loss_scale = zero::LossScale::fixed(options.loss_scale);
  return result;
}

// In the host's memory at first, so that its weights are the same on every device. The engine makes their values.
models::Llama build(const RunOptions& options, const Work& work, at::Device device) {
  at::set_num_threads(options.threads);
  torch::manual_seed(options.seed);
  models::Llama model = with_weights(zero::deferred([&] { return models::Llama(work.config); }), options.model);
  model->to(device);
  return model;
}

// Without the first two, which warm up, where enough are left.
double median_of_later(std::vector<double> values) {
  if (values.size() > 4) values.erase(values.begin(), values.begin() + 2);
  return middle(std::move(values));
}

class Run {
 public:
  Run(const zero::World& world, const RunOptions& options, const Work& work, const std::string& plan,
      Listener& listener)
      : mesh_(world, {.shard = options.shard_ranks, .tensor = options.tensor}),
        options_(options),
        work_(work),
        listener_(listener),
        device_(device_of(world, options.device)),
        saving_(world, options, work, listener),
        model_(build(options, work, device_)),
        engine_(*model_, mesh_, with_budget_in_bytes(make_plan(options, plan, world.size()), options, work),
                make_optimizer(options), engine_options(options)) {
    result_.plan = engine_.plan().label();
    result_.optimizer_name = options.optimizer;
    result_.lr = learning_rate(make_optimizer(options));
    result_.precision = name(engine_.plan().precision());
    predict(engine_, options, work, world, result_);
  }

  RunResult go() {
    const std::string checkpoint = saving_.resume(engine_, result_);
    const auto done = static_cast<std::int64_t>(result_.losses.size());
    if (saves_behind(options_.saving, done, options_.steps)) result_.peak.predicted += result_.snapshot;
    listener_.begin(engine_, result_);
    if (!checkpoint.empty()) listener_.resumed(checkpoint, result_);
    for (std::int64_t step = done + 1; step <= options_.steps && !result_.stopped; ++step) {
      saving_.before_step(engine_);
      if (step == options_.steps && options_.wants_timeline()) {
        watch_step();
      } else {
        train_step();
      }
      if (went_without_plan() || (step == done + 1 && options_.steps > step)) steps_.leave_out();
      if (options_.eval_every && step % options_.eval_every == 0) evaluate(step);
      result_.stopped = saving_.after_step(engine_, result_, reports_.back());
    }
    result_.unsaved = !saving_.finish(engine_, result_);
    measure();
    return std::move(result_);
  }

 private:
  const zero::World& world() const { return mesh_.world(); }

  double tokens_per_step() const {
    return 1.0 * mesh_.size(zero::Axis::data) * engine_.plan().accumulate() * static_cast<double>(options_.batch) *
           static_cast<double>(options_.seq);
  }

  at::Tensor loss(std::int64_t index, models::Split split) {
    const models::Batch batch = work_.corpus.batch(index, options_.batch, options_.seq, split);
    return model_->loss(batch.inputs.to(device_), batch.targets.to(device_));
  }

  void train_step() {
    if (scales_loss_) steps_.count();
    const auto begin = Clock::now();
    for (int i = 0; i < engine_.plan().accumulate(); ++i)
      engine_.backward(loss(engine_.micro_batch(), models::Split::train));
    const zero::StepReport report = engine_.step();
    seconds_.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    reports_.push_back(report);
    steps_.made();
    // A skipped step updates nothing, and the next finds what it gathered still there.
    if (std::exchange(skipped_, report.skipped) || report.skipped) steps_.leave_out();
    result_.losses.push_back(report.loss);
    result_.grad_norms.push_back(report.grad_norm);
    listener_.step({report, seconds_.back(), tokens_per_step() / seconds_.back(), engine_.ledger()});
  }

  // Batch i is rank i mod N's, so that all ranks make the same calls; the mean is over the batches in order
  // and thus the same at every world size. A rank without a batch of its own computes one that does not count.
  void evaluate(std::int64_t step) {
    const at::NoGradGuard no_grad;
    steps_.count();
    const std::int64_t available = work_.corpus.evaluation_batches(options_.batch, options_.seq);
    const std::int64_t batches = std::min(available, kEvaluationBatches);
    model_->eval();
    std::vector<double> mine;
    const zero::World data = mesh_.data().world();  // of ranks that have the same part of the model
    for (std::int64_t i = data.rank(); i < batches + data.rank(); i += data.size())
      mine.push_back(loss(i % available, models::Split::held_out).item<double>());
    model_->train();
    steps_.leave_out();
    result_.evaluations.push_back({step, mean_over_ranks(data, mine, batches)});
    listener_.evaluated(result_.evaluations.back());
  }

  static double mean_over_ranks(const zero::World& data, const std::vector<double>& mine, std::int64_t count) {
    const std::vector<double> all = gather(data, mine);
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t rank = i % data.size(), turn = i / data.size();
      sum += all[static_cast<std::size_t>(rank) * mine.size() + static_cast<std::size_t>(turn)];
    }
    return sum / static_cast<double>(count);
  }

  void measure() {
    const zero::Ledger ledger = engine_.ledger();
    result_.steps_made = static_cast<std::int64_t>(reports_.size());
    result_.parameter.measured = largest(world(), ledger.on_all_tiers(zero::Owner::parameter));
    result_.gradient.measured = largest(world(), ledger.on_all_tiers(zero::Owner::gradient));
    result_.optimizer.measured = largest(world(), ledger.on_all_tiers(zero::Owner::optimizer));
    steps_.count();
    measure_wire();
    measure_tiers(ledger);
    measure_peak(ledger);
    const zero::ActivationReport kept = engine_.activations();
    result_.recomputation = {kept.budget_bytes, kept.unlimited_bytes, kept.peak_bytes,         kept.planned_bytes,
                             kept.operators,    kept.recomputations,  kept.recomputation_share};
    result_.buffers.measured = largest(world(), buffers(ledger));
    if (result_.steps_made == 0) return leave_unmeasured();
    result_.step_seconds = median_of_later(seconds_);
    measure_seconds();
    result_.tokens_per_second = tokens_per_step() / result_.step_seconds;
  }

  // Of activations within a budget: until there is one, what is computed again may gather more.
  bool went_without_plan() const {
    const zero::ActivationReport kept = engine_.activations();
    return kept.budget_bytes > 0 && kept.planned_bytes == 0;
  }

  // What only a step shows.
  void leave_unmeasured() {
    for (Bytes* const bytes : {&result_.gradient, &result_.activation, &result_.buffers, &result_.peak})
      bytes->measured = kUnmeasured;
    for (TierBytes& each : result_.tiers)
      if (each.state == name(zero::State::gradient)) each.held.measured = kUnmeasured;
    constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
    result_.step_seconds = result_.tokens_per_second = unknown;
    result_.seconds = {unknown, unknown, unknown, unknown, unknown};
  }

  // By the ledger, which knows of activations on the CPU; elsewhere by the analyzer, if a step was watched.
  void measure_peak(const zero::Ledger& ledger) {
    using zero::MemoryOwner;
    const bool here = device_.is_cpu();
    const std::int64_t activations =
        here ? ledger[zero::Owner::activation].peak
             : of(watched_.owners, MemoryOwner::activation) + of(watched_.owners, MemoryOwner::temporary);
    const std::int64_t largest_activations = largest(world(), activations);
    const std::int64_t peak = largest(world(), here ? ledger.peak_total : watched_.bytes);
    result_.activation.measured = largest_activations > 0 ? largest_activations : kUnmeasured;
    result_.peak.measured = largest_activations > 0 ? peak : kUnmeasured;
  }

  // Of one step, with what it left on its way, and nothing that comes after it.
  void watch_step() {
    zero::MemoryAnalyzer analyzer(device_);
    analyzer.watch(engine_);
    train_step();
    static_cast<void>(engine_.traffic());  // waits for it
    const zero::MemoryReport report = analyzer.report();
    watched_ = report.peak;
    result_.timeline = timeline_of(report);
    result_.process_bytes = report.process.total;
    for (const zero::MemoryShare& share : report.process.parts) result_.process.push_back({share.name, share.bytes});
  }

  // This rank's, which are every rank's: a step's collectives are the same for all.
  void measure_collectives() {
    using enum zero::Collective;
    for (const zero::Collective collective : {all_gather, reduce_scatter, all_to_all})
      if (steps_.counted() > 0 && (collective != all_to_all || steps_.traffic()[collective].bytes > 0))
        result_.collectives[std::string(name(collective))] = steps_.traffic()[collective].bytes / steps_.counted();
  }

  // The largest of each at its own time.
  static std::int64_t buffers(const zero::Ledger& ledger) {
    std::int64_t sum = 0;
    for (const zero::Owner owner : {zero::Owner::gathered, zero::Owner::reduction, zero::Owner::update})
      sum += ledger[owner].peak;
    return sum;
  }

  // Of the applied steps; the update of the slowest rank.
  void measure_seconds() {
    const auto median_of = [&](double zero::StepReport::*seconds) {
      std::vector<double> values;
      for (const zero::StepReport& report : reports_)
        if (report.applied) values.push_back(report.*seconds);
      return values.empty() ? std::nullopt : std::optional(median_of_later(std::move(values)));
    };
    const auto update = median_of(&zero::StepReport::update_seconds);
    if (!update) return;
    result_.update_seconds = largest(world(), *update);
    result_.seconds = {0, *median_of(&zero::StepReport::gather_seconds), *median_of(&zero::StepReport::reduce_seconds),
                       *update, *median_of(&zero::StepReport::vote_seconds)};
    const Seconds& part = result_.seconds;
    const double rest = result_.step_seconds - part.gather - part.reduce - part.update - part.wait;
    result_.seconds.compute = std::max(rest, 0.0);
  }

  // The mean over the steps that are alike, without the first, which records the order in which parameters are used; 0
  // where there are none. Where it is no integer they were not alike.
  void measure_wire() {
    const std::int64_t steps = std::max<std::int64_t>(steps_.counted(), 1);
    WireBytes& wire = result_.wire;
    const auto mean = [&](std::int64_t total) {
      wire.uneven = largest(world(), std::int64_t{total % steps != 0}) != 0 || wire.uneven;
      return largest(world(), total / steps);
    };
    wire.measured = mean(steps_.traffic().bytes());
    wire.within_host.measured = mean(steps_.traffic().within_host());
    wire.across_hosts.measured = mean(steps_.traffic().across_hosts());
    wire.in_place.measured = mean(steps_.traffic().in_place());
    result_.tensor_wire.measured =
        steps_.counted() > 0 ? largest(world(), steps_.tensor() / steps_.counted()) : kUnmeasured;
    for (CodedBytes& each : wire.codes) {
      const zero::Traffic::Entry& entry = steps_.traffic()[carrier_of_codes(each.state)];
      each.within_host.measured = mean(entry.codes - entry.codes_across);
      each.across_hosts.measured = mean(entry.codes_across);
    }
    measure_collectives();
  }

  // Likewise.
  void measure_tiers(const zero::Ledger& ledger) {
    for (TierBytes& each : result_.tiers) {
      const zero::Tier tier = zero::tier_named(each.tier);
      const zero::State state = zero::state_named(each.state);
      each.held.measured = largest(world(), ledger.on(tier, owner_of(state)).bytes);
      const zero::TierTraffic::Entry& moved = steps_.moved().on(tier, state);
      const std::int64_t steps = steps_.counted();
      const auto mean = [&](std::int64_t total) {
        if (steps == 0) return kUnmeasured;
        each.uneven = largest(world(), std::int64_t{total % steps != 0}) != 0 || each.uneven;
        return largest(world(), total / steps);
      };
      each.read.measured = mean(moved.read);
      each.written.measured = mean(moved.written);
    }
  }

  zero::Mesh mesh_;
  const RunOptions& options_;
  const Work& work_;
  Listener& listener_;
  at::Device device_;
  Saving saving_;
  models::Llama model_;
  zero::Engine engine_;
  RunResult result_;
  zero::MemoryPeak watched_;  // of the step that was
  const bool scales_loss_ = engine_.plan().precision() == zero::Precision::fp16;
  CountedSteps steps_{engine_};
  bool skipped_ = false;  // the step before
  std::vector<double> seconds_;
  std::vector<zero::StepReport> reports_;
};

}  // namespace

RunResult run_plan(const zero::World& world, const RunOptions& options, const Work& work, const std::string& plan,
                   Listener& listener) {
  check_count(options, world.size());
  const PeakMemory memory;
  Run run(world, options, work, plan, listener);
  RunResult result = run.go();
  result.peak_bytes = largest(world, memory.bytes());
  return result;
}

Report report_for(const RunOptions& options, const Work& work, int ranks) {
  Report report;
  report.ranks = ranks;
  report.parameters = models::parameter_count(work.config);
  report.model = options.model;
  report.batch = options.batch;
  report.seq = options.seq;
  report.accumulate = options.settings.plan().accumulate();
  report.command = options.command;
  if (options.ranks == 0 && ranks > 1) report.command += " --ranks " + std::to_string(ranks);  // which a launcher said
  report.setting = setting_of(options);
  return report;
}

zero::World join(const RunOptions& options) {
  zero::World world = zero::init();
  if (options.ranks && options.ranks != world.size())
    throw UsageError("--ranks " + std::to_string(options.ranks) + " contradicts the launcher, which started " +
                     std::to_string(world.size()));
  return world;
}

}  // namespace cli

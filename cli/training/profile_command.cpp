// Measures what ranks of this machine can do at once, and writes it as a profile for the planner.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <optional>
#include <vector>

#include "base/system_files.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/options/checks.h"
#include "cli/options/device_option.h"
#include "cli/options/recipe.h"
#include "cli/report/format.h"
#include "cli/report/middle.h"
#include "cli/report/progress.h"
#include "cli/training/collect.h"
#include "cli/training/disk_profile.h"
#include "cli/training/own_ranks.h"
#include "cli/training/rates.h"
#include "cli/training/train.h"
#include "cli/training/training_device.h"
#include "planner/price.h"
#include "planner/quantity.h"
#include "planner/seconds.h"
#include "zero/devices.h"

namespace cli {
namespace {

constexpr std::size_t kBlock = std::size_t{64} << 20;
constexpr int kRanksOfHost = 4;

// Of ranks on several hosts: those of this host, and those of all hosts that have this one's place on theirs.
struct Hosts {
  zero::World here, across;
  int count() const { return across.size(); }
};

// Collective. Throws ConfigError where hosts have not as many ranks each, numbered host by host.
Hosts hosts_of(const zero::World& world) {
  const int each = world.local_size(), host = world.rank() / each;
  const bool uneven = largest(world, std::int64_t{each}) != -largest(world, -std::int64_t{each});
  const bool odd = uneven || world.rank() % each != world.local_rank() || world.size() % each != 0;
  if (largest(world, std::int64_t{odd}) > 0)
    throw zero::ConfigError("bench profile measures hosts of as many ranks each, numbered host by host",
                            "start it by zero launch --hosts, or on one host");
  const zero::Communicator& all = world.communicator();
  return {zero::World(all.split(host, world.local_rank()), world.local_rank(), each),
          zero::World(all.split(world.local_rank(), host), 0, 1)};
}

double copy_bandwidth(const zero::World& world) {
  std::vector<char> from(kBlock, 1), to(kBlock, 2);
  return 2.0 * kBlock / timed(world, [&] { std::memcpy(to.data(), from.data(), kBlock); });
}

// Bytes that a rank receives from the others in reduce-scatters and all-gathers of gradients.
double collective_bandwidth(const zero::World& world) {
  const int ranks = world.size();
  const std::int64_t slice = static_cast<std::int64_t>(kBlock) / 4 / 4 / ranks;
  auto memory = world.communicator().own_memory(slice * ranks * 4);
  std::vector<float> own;
  if (!memory) {
    own.resize(static_cast<std::size_t>(slice * ranks));
    memory = {own.data(), [](void*) {}};
  }
  auto* const data = static_cast<float*>(memory.get());
  std::fill_n(data, slice * ranks, 1.0f);
  const zero::View whole{data, slice * ranks, zero::Dtype::f32};
  const zero::View mine{data + world.rank() * slice, slice, zero::Dtype::f32};
  const double seconds = timed(world, [&] {
    world.communicator().reduce_scatter(whole, mine).wait();
    world.communicator().all_gather(mine, whole).wait();
  });
  return 2.0 * (ranks - 1) * static_cast<double>(slice) * 4 / seconds;
}

double collective_latency(const zero::World& world) {
  constexpr int calls = 50;
  return timed(world,
               [&] {
                 for (int i = 0; i < calls; ++i) world.communicator().barrier().wait();
               }) /
         calls;
}

class TemporaryFile {
 public:
  TemporaryFile() : path_(temporary_folder() + "/zero.XXXXXX"), file_(::mkstemp(path_.data())) {
    if (!file_) throw zero::Error("cannot make " + zero::in_quotes(path_) + ": " + std::strerror(errno));
    ::unlink(path_.c_str());
  }
  // Until it is on the disk.
  void write(const std::vector<char>& bytes) const {
    const auto size = static_cast<ssize_t>(bytes.size());
    if (::pwrite(file_.get(), bytes.data(), bytes.size(), 0) != size || ::fsync(file_.get()) != 0)
      throw zero::Error("cannot write " + zero::in_quotes(path_) + ": " + std::strerror(errno));
  }

 private:
  std::string path_;
  zero::Descriptor file_;
};

double disk_bandwidth(const zero::World& world) {
  const std::vector<char> bytes(kBlock, 1);
  const TemporaryFile file;
  return kBlock / timed(world, [&] { file.write(bytes); });
}

struct Trial {
  std::int64_t hidden, inner, layers, heads, vocab, batch, seq;
};

// Small and large matrices, few and many tokens, a large vocabulary, long attention.
constexpr Trial kTrials[] = {
    {64, 160, 8, 2, 256, 8, 64},     {128, 344, 4, 4, 256, 1, 64},     {128, 344, 4, 4, 256, 4, 128},
    {128, 344, 4, 4, 256, 1, 256},   {256, 688, 6, 8, 256, 1, 128},    {256, 688, 6, 8, 256, 4, 128},
    {256, 688, 6, 8, 256, 1, 256},   {256, 688, 2, 8, 256, 2, 512},    {256, 688, 3, 8, 4096, 2, 128},
    {512, 1408, 4, 8, 4096, 1, 128}, {768, 2048, 2, 12, 8192, 1, 128}, {1024, 2816, 1, 16, 1024, 1, 64}};
constexpr std::int64_t kSteps = 7;

// Of them, those that also accumulate.
constexpr std::size_t kAccumulated[] = {2, 4};
constexpr int kAccumulate = 4;
constexpr std::int64_t kAccumulatedSteps = 5;

models::LlamaConfig model_of(const Trial& trial) {
  models::LlamaConfig config = models::llama_preset("micro");
  config.hidden_size = trial.hidden;
  config.intermediate_size = trial.inner;
  config.num_hidden_layers = trial.layers;
  config.num_attention_heads = config.num_key_value_heads = trial.heads;
  config.vocab_size = trial.vocab;
  return config;
}

struct Trained {
  planner::Measured computing;
  double update_bandwidth = 0;
};

Trained train(const zero::World& world, RunOptions own, Work work, const Trial& trial,
              const planner::Profile& profile) {
  own.batch = trial.batch;
  own.seq = trial.seq;
  work.config = model_of(trial);
  Listener silent;
  const RunResult result = run_plan(world, own, work, own.plans.front(), silent);
  const zero::Plan plan = make_plan(own, own.plans.front(), world.size());
  const planner::MicroBatch micro{work.config, own.batch, own.seq, plan.precision()};
  const zero::Estimate estimate =
      planner::estimate(planner::shape_of(work.config), plan, make_optimizer(own), world.size());
  const double collectives = planner::collective_seconds(estimate, profile);
  const double computing = result.step_seconds - *result.update_seconds - collectives;
  return {{planner::labour_of(micro), largest(world, computing)},
          static_cast<double>(result.update_bytes) / *result.update_seconds};
}

struct Fit {
  planner::Pace pace;
  double farthest = 0;  // from a step that was measured, in relative terms
};

// Twice each, all of them in between, since machines change their speed.
constexpr int kPasses = 2;

// What is measured, on the first rank: as many as it will be.
class Steps {
 public:
  // `shown`: on this rank.
  Steps(const zero::World& world, const ProfileOptions& options, int hosts, bool shown) {
    const std::size_t waits = world.size() > 1 ? 2 * std::size(kAccumulated) : 0;
    const std::size_t runs = on_host(options.device) ? kPasses * (std::size(kTrials) + waits) : 1;
    const std::size_t bandwidths =
        kBandwidths + (on_host(options.device) ? 0 : kOfDevices) + (options.disk.empty() ? 0 : 1) + (hosts > 1 ? 1 : 0);
    if (shown)
      progress_.emplace("bench profile", static_cast<std::int64_t>(bandwidths + options.precisions.size() * runs),
                        Elsewhere::lines);
  }
  // The next of them begins.
  void next(const std::string& what) {
    if (progress_) progress_->show(done_++, what);
  }

 private:
  static constexpr std::size_t kBandwidths = 3;  // of copies, collectives and the disk
  static constexpr std::size_t kOfDevices = 4;   // from and to the host, of updates here and there
  std::optional<Progress> progress_;
  std::int64_t done_ = 0;
};

std::string turn(const RunOptions& options, int pass, const char* what, std::size_t i, std::size_t of) {
  return options.settings.text("precision") + ", pass " + std::to_string(pass + 1) + " of " + std::to_string(kPasses) +
         ", " + what + " " + std::to_string(i + 1) + " of " + std::to_string(of);
}

double waiting(const zero::World& world, const RunOptions& options, const Work& work, const planner::Profile& profile,
               Steps& steps) {
  RunOptions accumulated = options;
  accumulated.settings.set("accumulate", std::int64_t{kAccumulate});
  accumulated.steps = kAccumulatedSteps;
  std::vector<double> parts;
  for (int pass = 0; pass < kPasses; ++pass)
    for (std::size_t model = 0; model < std::size(kAccumulated); ++model) {
      const std::size_t i = kAccumulated[model];
      const std::string now = turn(options, pass, "waiting of model", model, std::size(kAccumulated));
      steps.next(now);
      const double once = train(world, options, work, kTrials[i], profile).computing.seconds;
      steps.next(now + ", accumulated");
      const double several = train(world, accumulated, work, kTrials[i], profile).computing.seconds;
      parts.push_back(planner::waiting_of(several, once, kAccumulate));
    }
  return std::accumulate(parts.begin(), parts.end(), 0.0) / static_cast<double>(parts.size());
}

Fit fit(const zero::World& world, const RunOptions& options, const Work& work, planner::Profile& profile,
        Steps& steps) {
  std::vector<planner::Measured> runs(std::size(kTrials));
  std::vector<double> updates;
  for (int pass = 0; pass < kPasses; ++pass)
    for (std::size_t i = 0; i < runs.size(); ++i) {
      steps.next(turn(options, pass, "model", i, runs.size()));
      const Trained trained = train(world, options, work, kTrials[i], profile);
      runs[i].labour = trained.computing.labour;
      runs[i].seconds += trained.computing.seconds / kPasses;
      updates.push_back(trained.update_bandwidth);
    }
  if (profile.update_bandwidth == 0) profile.update_bandwidth = middle(updates);
  Fit result{planner::fitted(runs)};
  for (const planner::Measured& run : runs)
    result.farthest = std::max(result.farthest, std::abs(run.labour.seconds(result.pace) / run.seconds - 1));
  if (world.size() > 1) result.pace.waiting = waiting(world, options, work, profile, steps);
  return result;
}

struct Measurement {
  planner::Profile profile;
  std::vector<double> farthest = {};  // by precision; of the host
  double from_host = 0, to_host = 0;  // of a device
};

void train_on_host(const zero::World& world, const ProfileOptions& options, Measurement& measured, Steps& steps) {
  RunOptions run;
  run.plans = {"ddp"};
  run.model = "micro";
  run.steps = kSteps;
  run.threads = options.threads;
  run.device = "cpu";
  run.profile = kNoProfile;
  const Work work = load(run);
  for (const std::string& precision : options.precisions) {
    run.settings.set("precision", precision);
    const Fit fitted = fit(world, run, work, measured.profile, steps);
    measured.profile.*planner::pace_of(zero::precision_named(precision)) = fitted.pace;
    measured.farthest.push_back(fitted.farthest);
  }
}

void measure_device(const Rates& rates, const ProfileOptions& options, Measurement& measured, Steps& steps) {
  planner::Profile& profile = measured.profile;
  profile.device_memory = static_cast<double>(rates.memory());
  steps.next("copies");
  profile.copy_bandwidth = rates.copies();
  steps.next("collectives");
  profile.collective_bandwidth = rates.collectives();
  profile.collective_seconds = rates.collective_seconds();
  steps.next("from the host");
  measured.from_host = rates.from_host();
  steps.next("to the host");
  measured.to_host = rates.to_host();
  profile.host_link_bandwidth = std::min(measured.from_host, measured.to_host);
  steps.next("updates");
  profile.update_bandwidth = rates.updates();
  steps.next("updates in the host's memory");
  profile.host_bandwidth = rates.updates_on_host();
  for (const std::string& precision : options.precisions) {
    steps.next(precision);
    profile.*planner::pace_of(zero::precision_named(precision)) = rates.pace(zero::precision_named(precision));
  }
}

std::string title_of(const Hosts& hosts, const ProfileOptions& options) {
  const int each = hosts.here.size();
  const std::string ranks = std::to_string(each) + (each == 1 ? " rank" : " ranks");
  return ranks + (on_host(options.device) ? "" : " on " + options.device) +
         (hosts.count() == 1 ? " of this machine" : " of each of " + std::to_string(hosts.count()) + " hosts");
}

bool network_given(const ProfileOptions& options) {
  return std::ranges::any_of(options.given, [](const GivenOption& each) { return each.first == "--network"; });
}

// Between hosts, of ranks that all receive at once.
void measure_network(const Hosts& hosts, const ProfileOptions& options, planner::Profile& profile, Steps& steps) {
  profile.network_bandwidth = planner::bandwidth_of(options.network);
  if (hosts.count() == 1) return;
  steps.next("the network");
  if (!network_given(options)) profile.network_bandwidth = collective_bandwidth(hosts.across);
  profile.network_seconds = collective_latency(hosts.across);
}

// Of the host.
void measure_memory(const zero::World& world, planner::Profile& profile, Steps& steps) {
  steps.next("copies");
  profile.copy_bandwidth = copy_bandwidth(world);
  steps.next("collectives");
  profile.collective_bandwidth = world.size() > 1 ? collective_bandwidth(world) : profile.copy_bandwidth;
  profile.collective_seconds = world.size() > 1 ? collective_latency(world) : 0;
}

// All but the network on each host by itself.
Measurement measure(const Hosts& hosts, const ProfileOptions& options, bool shown) {
  const zero::World& world = hosts.here;
  Measurement measured;
  planner::Profile& profile = measured.profile;
  profile.name = title_of(hosts, options);
  profile.ranks = world.size();
  profile.threads = options.threads;
  Steps steps(world, options, hosts.count(), shown);
  measure_network(hosts, options, profile, steps);
  const c10::Device device = device_of(world, options.device);
  if (device.is_cpu()) {
    measure_memory(world, profile, steps);
  } else {
    measure_device(Rates(world, device), options, measured, steps);
  }
  steps.next("the disk");
  profile.disk_bandwidth = disk_bandwidth(world);
  if (!options.disk.empty()) {
    steps.next("states on disk");
    profile_disk(world, options.disk, profile);
  }
  if (device.is_cpu()) train_on_host(world, options, measured, steps);
  return measured;
}

std::string gigabytes(double bandwidth) {
  return bandwidth < 1e9 ? fixed(bandwidth / 1e6, 1) + " MB/s" : fixed(bandwidth / 1e9, 2) + " GB/s";
}

void show(std::ostream& out, const std::string& precision, const planner::Pace& pace, const double* farthest) {
  out << precision << ": matrices " << fixed(pace.matrix_flops / 1e9, 1) << " Gflop/s, "
      << fixed(1e6 * pace.operator_seconds, 1) << " us an operator, ";
  if (farthest != nullptr)
    out << fixed(100 * pace.waiting, 0) << " % of the time waiting where gradients are reduced; of the "
        << std::size(kTrials) << " models that were trained for it none is farther off than "
        << fixed(100 * *farthest, 0) << " %\n";
  else
    out << "attention " << fixed(pace.attention_flops / 1e9, 1) << " Gflop/s, sums " << gigabytes(pace.sweep_bandwidth)
        << '\n';
}

void show(const Measurement& measurement, const ProfileOptions& options, const std::string& path) {
  const planner::Profile& profile = measurement.profile;
  std::ostream& out = is_standard_output(path) ? std::cerr : std::cout;
  out << profile.name << ", each of them while all work: copies " << gigabytes(profile.copy_bandwidth) << ", updates "
      << gigabytes(profile.update_bandwidth);
  if (profile.collective_bandwidth > 0)
    out << ", collectives " << gigabytes(profile.collective_bandwidth) << " and "
        << fixed(1e6 * profile.collective_seconds, 1) << " us each";
  const bool measured = profile.network_seconds > 0 && !network_given(options);
  out << ", disk " << gigabytes(profile.disk_bandwidth) << "; network, " << (measured ? "" : "as given, ")
      << gigabytes(profile.network_bandwidth);
  if (profile.network_seconds > 0) out << " and " << fixed(1e6 * profile.network_seconds, 1) << " us each collective";
  out << '\n';
  if (profile.disk_read_bandwidth > 0)
    out << "states on disk: read at " << gigabytes(profile.disk_read_bandwidth) << ", written at "
        << gigabytes(profile.disk_write_bandwidth) << '\n';
  if (profile.device_memory > 0)
    out << planner::in_units(static_cast<std::int64_t>(profile.device_memory)) << " of memory a rank; from the host "
        << gigabytes(measurement.from_host) << ", to it " << gigabytes(measurement.to_host) << "; updates there "
        << gigabytes(profile.host_bandwidth) << '\n';
  for (std::size_t i = 0; i < options.precisions.size(); ++i)
    show(out, options.precisions[i], profile.pace(zero::precision_named(options.precisions[i])),
         measurement.farthest.empty() ? nullptr : &measurement.farthest[i]);
  if (!is_standard_output(path)) out << "written to " << path << '\n';
}

int profile_as_rank(const ProfileOptions& options) {
  const zero::World world = launched() ? zero::init() : zero::World();
  const std::string path = output_of(options);
  const Hosts hosts = hosts_of(world);
  const Measurement measurement = measure(hosts, options, world.rank() == 0);
  if (world.rank() != 0) return 0;
  std::error_code error;  // of which writing the file says more
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  write_file(path, planner::to_json(measurement.profile));
  show(measurement, options, path);
  return 0;
}

// Throws UsageError where there is no such device.
int ranks_of(const ProfileOptions& options) {
  const c10::Device device = device_of(zero::World(), options.device);
  if (options.ranks > 0) return options.ranks;
  if (device.is_cpu()) return kRanksOfHost;
  return device_named(options.device).index < 0 ? zero::device_count(device.type()) : 1;
}

void check_precisions(const ProfileOptions& options) {
  if (!on_host(options.device) && std::ranges::count(options.precisions, "fp8") > 0)
    throw UsageError("--precisions: fp8 is measured on the CPU only, not on " + zero::in_quotes(options.device) +
                     "; leave it out");
}

}  // namespace

int profile(const ProfileOptions& given) {
  check_precisions(given);
  ProfileOptions options = given;
  options.ranks = ranks_of(given);
  if (launched() || options.ranks == 1) return profile_as_rank(options);
  return exit_code(run_ranks(own_ranks(arguments({"zero", "bench", "profile"}, options.given), options.ranks)));
}

}  // namespace cli

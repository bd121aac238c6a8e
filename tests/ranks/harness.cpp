#include "harness.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <thread>
#include <unordered_set>

#include "comm/decorators.h"
#include "gloo_group.h"
#include "memory/torch/arena_allocator.h"
#include "torch_optimizers.h"
#include "two_level_group.h"

namespace zero::test {
namespace {

// ZERO_TEST_FILL=255: new memory begins as that byte, NaN, so that what is read before it is written shows.
[[maybe_unused]] const bool kFilled = [] {
  const char* const text = std::getenv("ZERO_TEST_FILL");
  if (text != nullptr) fill_new_memory(static_cast<unsigned char>(std::atoi(text)));
  return text != nullptr;
}();

// Each tensor once, however many names it has.
std::vector<std::pair<std::string, at::Tensor>> distinct_parameters(const torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (const auto& item : module.named_parameters())
    if (seen.insert(item.value().unsafeGetTensorImpl()).second && item.value().is_floating_point())
      parameters.emplace_back(item.key(), item.value());
  return parameters;
}

ParameterInfo info_of(const std::string& name, const at::Tensor& parameter) {
  return {name, parameter.sizes().vec(), name.find("embed") != std::string::npos};
}

std::string at_index(const char* what, std::size_t i, double a, double b) {
  std::ostringstream text;
  text.precision(17);
  text << what << " " << i << ": " << a << " and " << b;
  return text.str();
}

using SameNumber = std::function<bool(double, double)>;
using SameTensor = std::function<bool(const at::Tensor&, const at::Tensor&)>;

std::string first_difference(const char* what, const std::vector<double>& a, const std::vector<double>& b,
                             const SameNumber& same) {
  if (a.size() != b.size()) return std::string(what) + ": other count";
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!same(a[i], b[i])) return at_index(what, i, a[i], b[i]);
  return {};
}

std::string compare(const Outcome& a, const Outcome& b, const SameNumber& same, const SameTensor& same_tensor) {
  if (const std::string text = first_difference("loss", a.losses, b.losses, same); !text.empty()) return text;
  if (const std::string text = first_difference("norm", a.norms, b.norms, same); !text.empty()) return text;
  for (const auto& [name, value] : a.parameters) {
    const auto other = b.parameters.find(name);
    if (other == b.parameters.end()) continue;
    if (value.sizes() != other->second.sizes()) return name + ": other shape";
    if (!same_tensor(value, other->second))
      return at_index(name.c_str(), 0, value.to(at::kDouble).sum().item<double>(),
                      other->second.to(at::kDouble).sum().item<double>());
  }
  return {};
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() &&
         (x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

// How the ranks talk: ZERO_TEST_TRANSPORT=threads|shared|tcp|gloo; on several hosts the first two over two levels.
MakeRank transport(int ranks, Timeout limit, int ranks_per_host) {
  const char* const name = std::getenv("ZERO_TEST_TRANSPORT");
  const std::string_view wanted = name == nullptr ? "threads" : name;
  const bool several = 0 < ranks_per_host && ranks_per_host < ranks;
  if (wanted == "shared" && several) return over_two_levels({ranks / ranks_per_host, ranks_per_host}, limit);
  if (wanted == "shared") return shared_group(ranks, limit);
  if (wanted == "tcp") return network_on_hosts(ranks, limit, ranks_per_host);
  if (wanted == "gloo") return gloo_on_hosts(ranks, limit, ranks_per_host);
  if (wanted != "threads") throw std::runtime_error("ZERO_TEST_TRANSPORT=" + std::string(wanted));
  const auto worlds =
      std::make_shared<std::vector<World>>(thread_worlds(ranks, {.timeout = limit, .ranks_per_host = ranks_per_host}));
  return [worlds](int rank) {
    return std::exchange((*worlds)[static_cast<std::size_t>(rank)], World()).communicator().impl();
  };
}

World join(const MakeRank& make, int rank, int ranks) {
  return ranks == 1 ? World() : World(Communicator(checked(make(rank))), rank, ranks);
}

}  // namespace

Surroundings& surroundings() {
  static Surroundings around;
  return around;
}

thread_local int rank_of_thread = 0;

at::Device device_of_rank() {
  return surroundings().device(rank_of_thread);
}

void run_ranks(int ranks, const std::function<void(const World&)>& rank, std::chrono::milliseconds limit,
               int ranks_per_host) {
  const MakeRank make = transport(ranks, limit, ranks_per_host);
  std::mutex mutex;
  std::string first;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      World world;  // ends with the thread, so that peers that wait for this rank fail then
      try {
        rank_of_thread = r;
        world = surroundings().joined(join(make, r, ranks));
        rank(world);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (first.empty()) first = "rank " + std::to_string(r) + ": " + error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (!first.empty()) throw RankError(first);
}

void on_another_thread(const std::function<void()>& call) {
  std::thread([&call, rank = rank_of_thread] {
    rank_of_thread = rank;
    call();
  }).join();
}

at::Tensor numbers(std::int64_t index, at::IntArrayRef shape) {
  return at::randn(shape, at::detail::createCPUGenerator(static_cast<std::uint64_t>(index))).to(device_of_rank());
}

at::Tensor tokens(std::int64_t index, at::IntArrayRef shape, std::int64_t vocabulary) {
  return at::randint(vocabulary, shape, at::detail::createCPUGenerator(static_cast<std::uint64_t>(index)),
                     at::TensorOptions(at::kLong))
      .to(device_of_rank());
}

void initialise(torch::nn::Module& module, std::int64_t seed) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : distinct_parameters(module)) {
    const at::Tensor noise = numbers(++seed * 1000, parameter.sizes()) * 0.2;
    if (parameter.dim() > 1) {
      parameter.copy_(noise);
    } else {
      parameter.copy_((name.find("norm") != std::string::npos ? 1.0 : 0.0) + noise);
    }
  }
}

void Outcome::record(const StepReport& report) {
  losses.push_back(report.loss);
  norms.push_back(report.grad_norm);
}

std::string difference(const Outcome& a, const Outcome& b) {
  return compare(
      a, b, [](double x, double y) { return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y); },
      same_bits);
}

std::string difference(const Outcome& a, const Outcome& b, double tolerance) {
  return compare(
      a, b, [=](double x, double y) { return std::abs(x - y) <= tolerance * std::max(1.0, std::abs(x)); },
      [=](const at::Tensor& x, const at::Tensor& y) {
        return at::allclose(x.to(at::kDouble), y.to(at::kDouble), tolerance, tolerance);
      });
}

std::vector<Plan> all_plans() {
  return {Plan::ddp(), Plan::zero1(), Plan::zero2(), Plan::zero3()};
}

std::vector<Plan> plans_of_meshes() {
  std::vector<Plan> plans = all_plans();
  plans.insert(plans.end(), {Plan::hybrid(), Plan::hybrid_zero2()});
  return plans;
}

Plan Job::plan_of(int rank) const {
  const auto own = budgets.find(rank);
  return own == budgets.end() ? plan : plan.activation_budget({.share = own->second});
}

std::string describe(const Job& job) {
  return job.plan.label() + " on " + std::to_string(job.ranks) + ", " + std::to_string(job.plan.accumulate()) +
         " micro-batches, " + std::string(name(job.plan.precision()));
}

std::string in_title(std::string text) {
  std::erase_if(text, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return text;
}

std::string in_title(int ranks, int accumulate, Precision precision) {
  return std::to_string(ranks) + "ranks" + std::to_string(accumulate) + "micro" +
         in_title(std::string(name(precision)));
}

std::map<std::string, at::Tensor> parameters_of(torch::nn::Module& module, const Engine& engine) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, parameter] : distinct_parameters(module)) {
    if (parameter.numel() == 0) continue;
    values[name] = engine.main_parameter(parameter).cpu();
    values[name + " as stored"] = whole(parameter.detach().to(torch::kCPU, parameter.scalar_type(), false, true));
  }
  return values;
}

Outcome agreed(const std::vector<Outcome>& runs) {
  for (std::size_t rank = 1; rank < runs.size(); ++rank)
    if (const std::string text = difference(runs[0], runs[rank]); !text.empty())
      throw std::runtime_error("rank " + std::to_string(rank) + " differs from rank 0: " + text);
  return runs.front();
}

PlainTrainer::PlainTrainer(torch::nn::Module& module, const Job& job) : module_(module), job_(job) {
  std::vector<at::Tensor> parameters;
  std::vector<ParameterInfo> infos;
  for (const auto& [name, parameter] : distinct_parameters(module)) {
    parameters.push_back(parameter);
    infos.push_back(info_of(name, parameter));
  }
  rules_ = parameter_rules(job.optimizer, job.options.groups, infos);
  optimizer_ = torch_optimizer(parameters, rules_);
}

void PlainTrainer::backward(const at::Tensor& loss) {
  loss_ += loss.item<double>();
  (loss / static_cast<double>(job_.ranks * job_.plan.accumulate())).backward();
}

void PlainTrainer::set_learning_rate() {
  const double factor = job_.options.schedule ? job_.options.schedule(steps_) : 1.0;
  auto rule = rules_.begin();
  for (auto& group : optimizer_->param_groups()) {
    group.options().set_lr(learning_rate(rule->optimizer) * factor * rule->lr_scale);
    ++rule;
  }
}

void PlainTrainer::step() {
  std::vector<at::Tensor> parameters;
  for (const auto& item : distinct_parameters(module_)) parameters.push_back(item.second);
  const double clip = job_.options.clip > 0 ? job_.options.clip : std::numeric_limits<double>::infinity();
  run_.norms.push_back(torch::nn::utils::clip_grad_norm_(parameters, clip));
  run_.losses.push_back(loss_ / (job_.ranks * job_.plan.accumulate()));
  set_learning_rate();
  optimizer_->step();
  optimizer_->zero_grad();
  loss_ = 0;
  ++steps_;
}

Outcome PlainTrainer::finish() {
  for (const auto& [name, parameter] : distinct_parameters(module_))
    if (parameter.numel() > 0)
      run_.parameters[name] = parameter.detach().to(torch::kCPU, parameter.scalar_type(), false, true);
  return run_;
}

Mesh mesh_of(const Job& job, const World& world) {
  if (job.shard == 0 && job.tensor == 1) return {world};
  return {world, {.shard = job.shard, .tensor = job.tensor}};
}

namespace {

void to_device_of_rank(torch::nn::Module& module) {
  if (const at::Device device = device_of_rank(); !device.is_cpu()) module.to(device);
}

void run_job(const Job& job, const std::function<void(const World&)>& rank) {
  run_ranks(
      job.ranks, [&](const World& world) { rank(job.joined(world)); }, std::chrono::hours(1), job.ranks_per_host);
}

}  // namespace

void on_each_rank(const Job& job, const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                  const std::function<void(torch::nn::Module&, Engine&, int)>& body) {
  run_job(job, [&](const World& world) {
    const std::shared_ptr<torch::nn::Module> module = make();
    to_device_of_rank(*module);
    initialise(*module, kSeed + world.rank());
    Engine engine(*module, mesh_of(job, world), job.plan, job.optimizer, job.options);
    body(*module, engine, world.rank());
  });
}

Outcome train_by_loop(const Job& job, const std::function<std::shared_ptr<torch::nn::Module>()>& make,
                      const AnyLoop& loop) {
  std::vector<Outcome> runs(static_cast<std::size_t>(job.ranks));
  on_each_rank(job, make, [&](torch::nn::Module& module, Engine& engine, int rank) {
    Outcome& run = runs[static_cast<std::size_t>(rank)];
    loop(module, engine, run, rank);
    run.parameters = parameters_of(module, engine);
  });
  return agreed(runs);
}

Outcome train_any(const Job& job, const MakeModel& make) {
  std::vector<Outcome> runs(static_cast<std::size_t>(job.ranks));
  run_job(job, [&](const World& world) {
    const AnyModel model = make();
    to_device_of_rank(*model.module);
    initialise(*model.module, kSeed + world.rank());
    Engine engine(*model.module, mesh_of(job, world), job.plan, job.optimizer, job.options);
    Outcome& run = runs[static_cast<std::size_t>(world.rank())];
    for (int step = 0; step < job.steps; ++step) {
      model.before_step(step);
      for (int i = 0; i < job.plan.accumulate(); ++i) engine.backward(model.loss(engine.micro_batch()));
      run.record(engine.step());
    }
    run.parameters = parameters_of(*model.module, engine);
  });
  return agreed(runs);
}

Outcome train_any_plain(const Job& job, const MakeModel& make) {
  const AnyModel model = make();
  to_device_of_rank(*model.module);
  initialise(*model.module, kSeed);
  PlainTrainer trainer(*model.module, job);
  const int micro_batches = job.data_ranks() * job.plan.accumulate();
  for (int step = 0; step < job.steps; ++step) {
    model.before_step(step);
    for (int i = 0; i < micro_batches; ++i) trainer.backward(model.loss(step * micro_batches + i));
    trainer.step();
  }
  return trainer.finish();
}

}  // namespace zero::test

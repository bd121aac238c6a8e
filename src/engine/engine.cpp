#include "zero/engine.h"

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <utility>

#include "backwards/paged_activations.h"
#include "engine/engine_optimizer.h"
#include "engine/impl.h"
#include "engine/memory_needs.h"
#include "engine/tensor_cuts.h"
#include "operators/program_functions.h"
#include "zero/error.h"

namespace zero {

namespace {

template <class AnyModule>
Inventory inventory_of(const AnyModule& module, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer,
                       const Options& options) {
  if (mesh.size(Axis::pipe) != 1)
    throw ConfigError("an engine runs on the replica, shard and tensor axes of a mesh, not on " + mesh.shape().text(),
                      "leave the pipe axis at 1 rank");
  plan.validate(mesh.data().shape());
  if (deferred_tensors::under_way())
    throw StateError("an engine cannot be built inside zero::deferred", "build it of what zero::deferred returns");
  Inventory inventory = take_inventory(module, plan, {options.full_precision, options.units, options.ignored});
  cut(inventory, mesh, plan, optimizer, options);
  return inventory;
}

// TorchScript has derivatives and a mixed precision of its own, which take no weights in 16 bits beside inputs in fp32.
Inventory inventory_of_script(const torch::jit::Module& module, const Mesh& mesh, const Plan& plan,
                              const Optimizer& optimizer, const Options& options) {
  if (mesh.size(Axis::tensor) > 1)
    throw ConfigError("a module of TorchScript cannot be cut over a tensor axis", "use the module in C++");
  if (plan.compute_dtype() != Dtype::f32)
    throw ConfigError("a module of TorchScript cannot be trained in " + std::string(name(plan.precision())),
                      "use fp32, or the module in C++");
  return inventory_of(module, mesh, plan, optimizer, options);
}

}  // namespace

Engine::Engine(torch::nn::Module& module, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer,
               Options options)
    : impl_(std::make_unique<Impl>(inventory_of(module, mesh, plan, optimizer, options), mesh, plan, optimizer,
                                   options)) {}

Engine::Engine(torch::jit::Module& module, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer,
               Options options)
    : impl_(std::make_unique<Impl>(inventory_of_script(module, mesh, plan, optimizer, options), mesh, plan, optimizer,
                                   options)) {}

// A process that was forked has none of the threads on which the engine's work is done: there it is left as it is.
Engine::~Engine() {
  if (!impl_) return;
  if (impl_->ranks.exchange().of_this_process())
    Impl::end(std::move(impl_));
  else
    static_cast<void>(impl_.release());
}
Engine::Engine(Engine&& other) noexcept = default;
Engine& Engine::operator=(Engine&& other) noexcept {
  Engine(std::move(other)).impl_.swap(impl_);
  return *this;
}

Engine::Impl& Engine::self() const {
  if (!impl_) throw StateError("this engine was moved from", "call the one that it was moved to");
  return *impl_;
}

void Engine::backward(const at::Tensor& loss) {
  Impl& engine = self();
  const std::shared_ptr<RunningBackward> run = engine.accumulation.new_backward();
  const RunningBackward::Ends ends(*run);
  engine.ranks.accounts().explaining_memory("backward", [&] {
    engine.entry("backward()", {.idle = true, .unchanged = true}, [&] { engine.accumulation.backward(run, loss); });
  });
  program_functions::behind_operator();
}
StepReport Engine::step() {
  return self().take_step();
}
at::Tensor Engine::step(const std::function<at::Tensor()>& closure) {
  return optimizer().step(closure);
}
const StepReport& Engine::last_step() const {
  return self().step.last();
}
at::Tensor Engine::scale(const at::Tensor& loss) {
  Impl& engine = self();
  const at::Tensor scaled = engine.entry("scale()", {}, [&] { return engine.accumulation.scale(loss); });
  program_functions::behind_operator();
  return scaled;
}
void Engine::discard() {
  Impl& engine = self();
  engine.entry("discard()", {.idle = true}, [&] { engine.accumulation.drop_step(); });
}
std::int64_t Engine::micro_batch() const {
  return self().accumulation.next_micro_batch();
}
at::Tensor Engine::gradient(const at::Tensor& parameter) const {
  Impl& engine = self();
  return engine.entry("gradient()", {.idle = true}, [&] {
    engine.step.gradients().require_gradients("gradient()");
    return engine.step.gradients().gradient(parameter);
  });
}
void Engine::for_each_gradient_slice(const std::function<void(const GradientSlice&)>& use) const {
  Impl& engine = self();
  constexpr const char* call = "for_each_gradient_slice()";
  engine.entry(call, {.idle = true}, [&] { engine.step.gradients().require_gradients(call); });
  engine.step.gradients().for_each_slice(use);
}
at::Tensor Engine::main_parameter(const at::Tensor& parameter) const {
  Impl& engine = self();
  return engine.entry("main_parameter()", {.latest = true, .unwatched = true},
                      [&] { return engine.parameters.main_parameter(parameter); });
}

torch::optim::Optimizer& Engine::optimizer() {
  return self().optimizer().torch();
}
void Engine::refuse_optimizer(const std::type_info& wanted) {
  ConfigError error = self().step.other_optimizer(c10::demangle(wanted.name()));
  error.name_rank(self().ranks.rank_of_all());
  throw error;
}
void Engine::zero_grad(bool set_to_none) {
  optimizer().zero_grad(set_to_none);
}
std::vector<torch::optim::OptimizerParamGroup>& Engine::param_groups() {
  return optimizer().param_groups();
}
void Engine::set_lr(double lr) {
  Impl& engine = self();
  engine.entry("set_lr()", {}, [&] { engine.optimizer().set_lr(lr); });
}
void Engine::request(std::uint32_t bits) {
  self().step.request(bits);
}
void Engine::release(ReleaseAs as) {
  self().release(as);
}

EngineState Engine::state() {
  return self().saving.state();
}
void Engine::load_state(StateSource& source) {
  self().saving.load_state(source);
}
std::string Engine::save(const std::string& folder, const SaveOptions& options) {
  return self().saving.save(folder, options);
}
std::string Engine::finish_save() {
  return self().saving.finish_save();
}
Restored Engine::load(const std::string& folder, const LoadOptions& options) {
  return self().saving.load(folder, options);
}

const Plan& Engine::plan() const {
  return self().trained.plan();
}
const std::vector<ParameterRule>& Engine::rules() const {
  return self().trained.rules();
}
const Layout& Engine::layout() const {
  return self().trained.layout();
}
Estimate Engine::estimate() const {
  return self().parameters.needs().estimate();
}
Topologies Engine::topologies() const {
  return self().ranks.topologies();
}

Memory Engine::memory() const {
  return self().parameters.needs().memory();
}
std::optional<Trace> Engine::trace() const {
  return self().micro_batch().trace();
}
ActivationReport Engine::activations() const {
  return self().micro_batch().activations().report();
}

std::vector<TensorOperator> Engine::tensor_operators() const {
  std::vector<TensorOperator> operators;
  if (self().ranks.tensor() == nullptr) return operators;
  for (const auto& [name, count] : self().ranks.tensor()->counts())
    operators.push_back({name, count.in_parts, count.whole});
  return operators;
}

Ledger Engine::ledger() const {
  return self().ranks.accounts().snapshot();
}
Ledger Engine::building() const {
  return self().ranks.building();
}
void Engine::reset_peaks() {
  self().ranks.accounts().reset_peaks();
}
Traffic Engine::traffic() const {
  self().parameters.wait_for_publication();
  return self().ranks.meter()->snapshot();
}
Traffic Engine::tensor_traffic() const {
  return self().ranks.tensor_meter()->snapshot();
}
Traffic Engine::setup_traffic() const {
  return self().ranks.setup_meter().snapshot();
}
void Engine::reset_traffic() {
  self().parameters.wait_for_publication();
  self().ranks.meter()->reset();
  self().ranks.tensor_meter()->reset();
  self().tiers().reset();
}
TierTraffic Engine::tier_traffic() const {
  return self().tiers().steps();
}
TierTraffic Engine::setup_tier_traffic() const {
  return self().tiers().others();
}
std::int64_t Engine::steps() const {
  return self().step.steps();
}
std::int64_t Engine::skipped_steps() const {
  return self().step.skipped();
}
double Engine::loss_scale() const {
  return self().accumulation.scaler().value();
}
void Engine::observe(std::weak_ptr<EngineObserver> observer) {
  self().observe(observer);
}

}  // namespace zero

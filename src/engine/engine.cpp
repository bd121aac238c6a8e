#include "zero/engine.h"

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <utility>

#include "engine/engine_optimizer.h"
#include "engine/impl.h"
#include "zero/error.h"

namespace zero {

namespace {

template <class AnyModule>
Inventory inventory_of(const AnyModule& module, const Mesh& mesh, const Plan& plan, const Options& options) {
  if (mesh.size(Axis::data) != mesh.shape().size())
    throw ConfigError("an engine runs on the replica and shard axes of a mesh, not on " + mesh.shape().text(),
                      "leave the pipe and tensor axes at 1 rank");
  plan.validate(mesh.shape());
  if (deferred_tensors::under_way())
    throw StateError("an engine cannot be built inside zero::deferred", "build it of what zero::deferred returns");
  return take_inventory(module, plan, {options.full_precision, options.units, options.ignored});
}

// TorchScript has derivatives and a mixed precision of its own, which take no weights in 16 bits beside inputs in fp32.
Inventory inventory_of_script(const torch::jit::Module& module, const Mesh& mesh, const Plan& plan,
                              const Options& options) {
  if (plan.compute_dtype() != Dtype::f32)
    throw ConfigError("a module of TorchScript cannot be trained in " + std::string(name(plan.precision())),
                      "use fp32, or the module in C++");
  return inventory_of(module, mesh, plan, options);
}

}  // namespace

Engine::Engine(torch::nn::Module& module, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer,
               Options options)
    : impl_(std::make_unique<Impl>(inventory_of(module, mesh, plan, options), mesh, plan, optimizer, options)) {}

Engine::Engine(torch::jit::Module& module, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer,
               Options options)
    : impl_(std::make_unique<Impl>(inventory_of_script(module, mesh, plan, options), mesh, plan, optimizer, options)) {}

// A process that was forked has none of the threads on which the engine's work is done: there it is left as it is.
Engine::~Engine() {
  if (!impl_) return;
  if (impl_->of_this_process())
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
  Impl& impl = self();
  const std::shared_ptr<RunningBackward> run = impl.new_backward();
  const RunningBackward::Ends ends(*run);
  impl.accounts().explaining_memory("backward", [&] { impl.backward(run, loss); });
}
StepReport Engine::step() {
  return self().step();
}
const StepReport& Engine::last_step() const {
  return self().last_step();
}
at::Tensor Engine::scale(const at::Tensor& loss) {
  return self().scale(loss);
}
at::Tensor Engine::step(const std::function<at::Tensor()>& closure) {
  return optimizer().step(closure);
}
torch::optim::Optimizer& Engine::optimizer() {
  return self().optimizer().torch();
}
void Engine::refuse_optimizer(const std::type_info& wanted) {
  self().refuse_optimizer(c10::demangle(wanted.name()));
}
void Engine::zero_grad(bool set_to_none) {
  optimizer().zero_grad(set_to_none);
}
std::vector<torch::optim::OptimizerParamGroup>& Engine::param_groups() {
  return optimizer().param_groups();
}
void Engine::set_lr(double lr) {
  self().set_lr(lr);
}
std::int64_t Engine::micro_batch() const {
  return self().next_micro_batch();
}
void Engine::discard() {
  self().discard();
}
void Engine::request(std::uint32_t bits) {
  self().request(bits);
}
void Engine::release(ReleaseAs as) {
  self().release(as);
}
const Plan& Engine::plan() const {
  return self().plan();
}
const std::vector<ParameterRule>& Engine::rules() const {
  return self().rules();
}

const Layout& Engine::layout() const {
  return self().layout();
}
Estimate Engine::estimate() const {
  return self().estimate();
}
Memory Engine::memory() const {
  return self().memory();
}
std::optional<Trace> Engine::trace() const {
  return self().trace();
}
Ledger Engine::ledger() const {
  return self().accounts().snapshot();
}
Ledger Engine::building() const {
  return self().building();
}
void Engine::reset_peaks() {
  self().accounts().reset_peaks();
}
Traffic Engine::traffic() const {
  return self().meter().snapshot();
}
Traffic Engine::setup_traffic() const {
  return self().setup_traffic();
}
void Engine::reset_traffic() {
  self().meter().reset();
  self().tiers().reset();
}
TierTraffic Engine::tier_traffic() const {
  return self().tiers().steps();
}
TierTraffic Engine::setup_tier_traffic() const {
  return self().tiers().others();
}
std::int64_t Engine::steps() const {
  return self().steps();
}
std::int64_t Engine::skipped_steps() const {
  return self().skipped_steps();
}
double Engine::loss_scale() const {
  return self().loss_scale();
}
EngineState Engine::state() {
  return self().state();
}
void Engine::load_state(StateSource& source) {
  self().load_state(source);
}
void Engine::observe(std::weak_ptr<EngineObserver> observer) {
  self().observe(observer);
}
at::Tensor Engine::gradient(const at::Tensor& parameter) const {
  return self().gradient(parameter);
}
void Engine::for_each_gradient_slice(const std::function<void(const GradientSlice&)>& use) const {
  self().for_each_gradient_slice(use);
}
at::Tensor Engine::main_parameter(const at::Tensor& parameter) const {
  return self().main_parameter(parameter);
}

}  // namespace zero

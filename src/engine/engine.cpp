#include "zero/engine.h"

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

Engine::~Engine() = default;
Engine::Engine(Engine&& other) noexcept = default;
Engine& Engine::operator=(Engine&& other) noexcept = default;

void Engine::backward(const at::Tensor& loss) {
  impl_->accounts().explaining_memory("backward", [&] { impl_->backward(loss); });
}
StepReport Engine::step() {
  return impl_->step();
}
const StepReport& Engine::last_step() const {
  return impl_->last_step();
}
at::Tensor Engine::scale(const at::Tensor& loss) {
  return impl_->scale(loss);
}
torch::optim::Optimizer& Engine::optimizer() {
  return impl_->optimizer();
}
void Engine::set_lr(double lr) {
  impl_->set_lr(lr);
}
std::int64_t Engine::micro_batch() const {
  return impl_->micro_batch_number();
}
void Engine::discard() {
  impl_->discard();
}
void Engine::request(std::uint32_t bits) {
  impl_->request(bits);
}
void Engine::release() {
  impl_->release();
}
const Plan& Engine::plan() const {
  return impl_->plan();
}
const std::vector<ParameterRule>& Engine::rules() const {
  return impl_->rules();
}

const Layout& Engine::layout() const {
  return impl_->layout();
}
Estimate Engine::estimate() const {
  return impl_->estimate();
}
Memory Engine::memory() const {
  return impl_->memory();
}
std::optional<Trace> Engine::trace() const {
  return impl_->trace();
}
Ledger Engine::ledger() const {
  return impl_->accounts().snapshot();
}
Ledger Engine::building() const {
  return impl_->building();
}
void Engine::reset_peaks() {
  impl_->accounts().reset_peaks();
}
Traffic Engine::traffic() const {
  return impl_->meter().snapshot();
}
Traffic Engine::setup_traffic() const {
  return impl_->setup_traffic();
}
void Engine::reset_traffic() {
  impl_->meter().reset();
  impl_->tiers().reset();
}
TierTraffic Engine::tier_traffic() const {
  return impl_->tiers().steps();
}
TierTraffic Engine::setup_tier_traffic() const {
  return impl_->tiers().others();
}
std::int64_t Engine::steps() const {
  return impl_->steps();
}
std::int64_t Engine::skipped_steps() const {
  return impl_->skipped_steps();
}
double Engine::loss_scale() const {
  return impl_->loss_scale();
}
EngineState Engine::state() {
  return impl_->state();
}
void Engine::load_state(StateSource& source) {
  impl_->load_state(source);
}
void Engine::observe(std::weak_ptr<EngineObserver> observer) {
  impl_->observe(observer);
}
at::Tensor Engine::gradient(const at::Tensor& parameter) const {
  return impl_->gradient(parameter);
}
void Engine::for_each_gradient_slice(const std::function<void(const GradientSlice&)>& use) const {
  impl_->for_each_gradient_slice(use);
}
at::Tensor Engine::main_parameter(const at::Tensor& parameter) const {
  return impl_->main_parameter(parameter);
}

}  // namespace zero

#include "backwards/random_numbers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "backwards/arguments.h"
#include "backwards/micro_batch.h"
#include "backwards/running_backward.h"
#include "backwards/unwatched.h"
#include "base/lifetimes.h"
#include "base/random.h"
#include "zero/error.h"

namespace zero {
namespace {

// A program that never steps is not to remember without end.
constexpr std::size_t kMostRemembered = std::size_t{1} << 20;
// An engine that has not stepped for so many steps of others does not go back to what was drawn before.
constexpr std::int64_t kMostSteps = 64;

// The next 624 numbers of a Mersenne twister come from all of its words but these bits of the first one.
constexpr std::uint32_t kUnused = 0x7FFFFFFF;

// To be used under its mutex.
at::CPUGeneratorImpl& default_of_host() {
  return *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
}

std::uint64_t two_words(std::uint32_t upper, std::uint32_t lower) {
  return std::uint64_t{upper} << 32 | lower;
}

std::uint64_t hash_of(const at::mt19937_data_pod& data, at::CPUGeneratorImpl& generator) {
  std::uint64_t hash = derived(two_words(data.state_[0], data.state_[1]), two_words(data.state_[2], data.next_));
  const std::optional<float> normal = generator.next_float_normal_sample();
  const std::optional<double> wide = generator.next_double_normal_sample();
  if (normal) hash = derived(hash, std::bit_cast<std::uint32_t>(*normal));
  if (wide) hash = derived(hash, std::bit_cast<std::uint64_t>(*wide));
  return hash;
}

std::uint64_t hash_of_default(const c10::Device& device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  std::uint64_t hash = 0;
  for (std::int64_t at = 0; at < state.numel(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const char*>(state.const_data_ptr()) + at,
                static_cast<std::size_t>(std::min<std::int64_t>(8, state.numel() - at)));
    hash = derived(hash, word);
  }
  return hash;
}

bool composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// Where an operator computes: on the device of its first tensor, else on the one that it is given.
c10::Device device_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  std::optional<c10::Device> found;
  for (const c10::IValue& value : arguments)
    for_each_tensor(value, [&](const c10::TensorImpl* tensor) {
      if (!found && tensor != c10::UndefinedTensorImpl::singleton()) found = tensor->device();
    });
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size() && !found; ++i)
    if (formal[i].name() == "device" && arguments[i].isDevice()) found = arguments[i].toDevice();
  return found.value_or(c10::kCPU);
}

// Operator and sizes: other draws from the same place are no repetition.
std::uint64_t hash_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  std::uint64_t hash = std::hash<c10::OperatorHandle>{}(op);
  for (const c10::IValue& value : arguments) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    for (const std::int64_t size : value.toTensor().sizes()) hash = derived(hash, static_cast<std::uint64_t>(size));
    break;
  }
  return hash;
}

// Whether it is asked to draw nothing, as dropout is in evaluation.
bool draws_nothing(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = formal[i].name();
    const bool share = name == "p" || name == "dropout" || name == "dropout_p";
    if (share && arguments[i].isDouble() && arguments[i].toDouble() == 0) return true;
    if ((name == "train" || name == "training") && arguments[i].isBool() && !arguments[i].toBool()) return true;
  }
  return false;
}

c10::IValue* generator_among(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  const auto& formal = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (formal[i].name() == "generator") return &arguments[i];
  return nullptr;
}

// A forward inside backward computes activations again, which may be of another generator: a program that goes back
// has set the default one back to where it was.
[[noreturn]] void refuse_other_numbers(const c10::OperatorHandle& op) {
  throw StateError(op.operator_name().name +
                       " draws random numbers in a forward inside backward, which would not be those of the forward "
                       "whose activations it recomputes",
                   "set LibTorch's generator back to where it was before that forward, as checkpoints do, on the only "
                   "thread of the process that has engines; else set dropout to 0 there, or keep these activations");
}

}  // namespace

bool draws(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

// The default generator of a device has the state of another as long as this lives.
class Draw::InsteadOfDefault {
 public:
  explicit InsteadOfDefault(const at::Generator& generator)
      : default_(at::globalContext().defaultGenerator(generator.device())), before_(default_.get_state()) {
    default_.set_state(generator.get_state());
  }
  ~InsteadOfDefault() { default_.set_state(before_); }
  InsteadOfDefault(const InsteadOfDefault&) = delete;
  InsteadOfDefault& operator=(const InsteadOfDefault&) = delete;

 private:
  at::Generator default_;
  at::Tensor before_;
};

void RandomNumbers::add_device(const c10::Device& device) {
  const std::lock_guard lock(mutex_);
  if (!device.is_cpu()) devices_.insert_or_assign(device.type(), device);
}

// Where an operator on such a device draws; none: not for an engine.
std::optional<c10::Device> RandomNumbers::known(const c10::Device& device) const {
  if (device.is_cpu()) return device;
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(device.type());
  if (found == devices_.end()) return {};
  return device.has_index() ? device : found->second;
}

void RandomNumbers::begin_forward() {
  if (watched_threads != 1) return;
  begin_ = latest_ = place(c10::kCPU).host;
  following_ = false;
}

void RandomNumbers::end_seed() {
  const std::lock_guard lock(mutex_);
  if (!seeded_) return;
  if (const auto found = drawn_.find(*std::exchange(seeded_, std::nullopt)); found != drawn_.end())
    found->second.over = true;
}

void RandomNumbers::add(const MicroBatch& engine) {
  const std::lock_guard lock(mutex_);
  stepped_.emplace(&engine, steps_);
}

void RandomNumbers::step_of(const MicroBatch& engine) {
  const std::lock_guard lock(mutex_);
  stepped_[&engine] = ++steps_;
  forget_what_all_stepped_since();
}

void RandomNumbers::remove(const MicroBatch& engine) {
  const std::lock_guard lock(mutex_);
  stepped_.erase(&engine);
  if (stepped_.empty()) return drawn_.clear();
  forget_what_all_stepped_since();
}

// Nobody goes back to that. An engine goes back to what the program drew for it between steps of others.
void RandomNumbers::forget_what_all_stepped_since() {
  std::int64_t first = steps_;
  for (const auto& [engine, step] : stepped_) first = std::min(first, step);
  first = std::max(first, steps_ - kMostSteps);
  std::erase_if(drawn_, [first](const auto& each) { return each.second.step < first; });
}

RandomNumbers::Place RandomNumbers::place(const c10::Device& device) {
  Place place{.device = device.is_cpu() ? 0 : hash_of_default(device)};
  at::CPUGeneratorImpl& host = default_of_host();
  const std::lock_guard lock(host.mutex_);
  const at::mt19937_data_pod data = host.engine().data();
  place.host = hash_of(data, host);
  place.seeded = data.next_ == 0 && data.state_[0] == static_cast<std::uint32_t>(data.seed_);
  return place;
}

std::uint32_t RandomNumbers::new_mark() {
  static std::atomic<std::uint32_t> latest = 0;
  return ++latest & kUnused;
}

std::optional<RandomNumbers::Drawn> RandomNumbers::find(std::uint64_t key, bool also_over) {
  const std::lock_guard lock(mutex_);
  const auto found = drawn_.find(key);
  if (found == drawn_.end() || (found->second.over && !also_over)) return {};
  if (found->second.begins) seeded_ = key;
  return found->second;
}

void RandomNumbers::remember(std::uint64_t key, Drawn drawn) {
  const std::lock_guard lock(mutex_);
  drawn.step = steps_;
  if (drawn.begins) seeded_ = key;
  if (drawn_.size() >= kMostRemembered) drawn_.clear();
  drawn_.insert_or_assign(key, drawn);
}

// Marks the place behind a draw.
void RandomNumbers::leave(std::uint32_t mark, bool following) {
  at::CPUGeneratorImpl& host = default_of_host();
  const std::lock_guard lock(host.mutex_);
  at::mt19937 engine = host.engine();
  at::mt19937_data_pod data = engine.data();
  data.state_[0] = (data.state_[0] & ~kUnused) | mark;
  engine.set_data(data);
  host.set_engine(engine);
  latest_ = hash_of(data, host);
  following_ = following;
}

// Since the forward began.
bool RandomNumbers::seeded_by_program(const Place& place) const {
  return place.seeded && place.host != begin_ && place.host != latest_;
}

bool RandomNumbers::follows(const Place& place) const {
  return following_ && place.host == latest_;
}

at::Generator RandomNumbers::generator(const c10::Device& device) {
  const std::lock_guard lock(mutex_);
  const auto found = generators_.find(device.type());
  if (found != generators_.end() && (device.is_cpu() || found->second.device() == device)) return found->second;
  at::Generator made =
      device.is_cpu() ? at::detail::createCPUGenerator()
                      : at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  generators_.insert_or_assign(device.type(), made);
  return made;
}

Draw::Draw(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
  const RunningBackward* const running = RunningBackward::current();
  numbers_ = running != nullptr ? running->numbers() : OfThread<RandomNumbers>::here();
  if (numbers_ == nullptr) return;
  const auto device = numbers_->known(device_of(op, arguments));
  if (!device) return;
  device_ = *device;
  generator_ = generator_among(op, arguments);
  given_ = generator_ != nullptr && generator_->isGenerator() && generator_->toGenerator().defined();
  if (given_ && generator_->toGenerator() != at::globalContext().defaultGenerator(device_)) return;
  remembered_ = watched_threads == 1;
  const bool trains = at::GradMode::is_enabled();
  if (trains && running == nullptr) forward_ = MicroBatch::open();
  const bool recomputes = trains && running != nullptr;
  if (generator_ == nullptr && (device_.is_cpu() || composite(op))) {
    inside_ = remembered_ || forward_ != nullptr || recomputes;
    return;
  }
  const bool under_hooks = forward_ != nullptr && !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
  if (under_hooks && !draws_nothing(op, arguments)) forward_->draw_under_hooks();
  find_before(op, arguments, recomputes);
  if (again_ && again_->seed) {
    from_engines(*again_);
  } else if (forward_ != nullptr && !of_program()) {
    from_engines(next());
  } else if (recomputes && running->drawn() && !given_ && !again_ && !draws_nothing(op, arguments)) {
    refuse_other_numbers(op);
  } else {
    from_default_ = remembered_;
  }
}

Draw::~Draw() = default;

// What was drawn from here before.
void Draw::find_before(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments, bool also_over) {
  if (!remembered_) return;
  before_ = RandomNumbers::place(device_);
  const std::uint64_t what = hash_of(op, arguments);
  key_of_default_ = derived(what, device_.is_cpu() ? before_.host : before_.device);
  key_ = device_.is_cpu() ? key_of_default_ : derived(key_of_default_, before_.host);
  again_ = numbers_->find(key_, also_over);
  if (!again_ && !device_.is_cpu()) again_ = numbers_->find(key_of_default_, also_over);
  if (given_ && again_ && again_->seed) again_.reset();
}

// Whether the program says where it draws from.
bool Draw::of_program() const {
  return given_ || again_ || (remembered_ && (numbers_->follows(before_) || numbers_->seeded_by_program(before_)));
}

// The engine's next numbers.
RandomNumbers::Drawn Draw::next() const {
  const RandomNumbers::Drawn drawn{
      .seed = forward_->next_seed(), .mark = RandomNumbers::new_mark(), .begins = before_.seeded};
  if (remembered_) numbers_->remember(key_, drawn);
  return drawn;
}

void Draw::from_engines(const RandomNumbers::Drawn& drawn) {
  give(*drawn.seed);
  if (remembered_) numbers_->leave(drawn.mark, /*following=*/false);
}

// To an operator that takes no generator, as some on devices, in place of the default one.
void Draw::give(std::uint64_t seed) {
  at::Generator generator = numbers_->generator(device_);
  generator.set_current_seed(seed);
  if (generator_ != nullptr) {
    *generator_ = std::move(generator);
  } else {
    instead_ = std::make_unique<InsteadOfDefault>(generator);
  }
}

void Draw::done() {
  if (!from_default_) return;
  const RandomNumbers::Place now = RandomNumbers::place(device_);
  if (device_.is_cpu() ? now.host == before_.host : now.device == before_.device) return;  // it drew nothing
  const bool following = numbers_->follows(before_) || numbers_->seeded_by_program(before_);
  if (!again_) {
    again_ = RandomNumbers::Drawn{
        .seed = {}, .mark = RandomNumbers::new_mark(), .begins = before_.seeded && at::GradMode::is_enabled()};
    numbers_->remember(key_of_default_, *again_);
  }
  numbers_->leave(again_->mark, following || (forward_ != nullptr && !given_));
}

}  // namespace zero

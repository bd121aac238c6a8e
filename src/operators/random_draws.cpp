// Operators that draw random numbers, each from the generator that backwards/random_numbers.h says.
#include <ATen/Context.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <optional>
#include <string>
#include <utility>

#include "backwards/micro_batch.h"
#include "backwards/operator_kind.h"
#include "backwards/random_numbers.h"
#include "backwards/running_backward.h"
#include "backwards/unwatched.h"
#include "base/lifetimes.h"
#include "base/random.h"
#include "operators/operator_rule.h"
#include "operators/program_functions.h"
#include "zero/error.h"

namespace zero {
namespace {

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

// Whether backward may run what runs now once more.
bool may_come_again() {
  return !at::GradMode::is_enabled() || !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
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

// A run of an operator that may draw.
class Draw {
 public:
  // Gives the operator the generator that it is to draw from. Throws StateError where it would draw other numbers than
  // in the forward whose activations it computes again.
  Draw(const c10::OperatorHandle& op, std::span<c10::IValue> arguments) {
    const RunningBackward* const running = RunningBackward::current();
    numbers_ = running != nullptr ? running->numbers() : ThreadShared<RandomNumbers>::here();
    if (numbers_ == nullptr) return;
    const auto device = numbers_->known(device_of(op, arguments));
    if (!device) return;
    device_ = *device;
    generator_ = generator_among(op, arguments);
    given_ = generator_ != nullptr && generator_->isGenerator() && generator_->toGenerator().defined();
    if (given_ && generator_->toGenerator() != at::globalContext().defaultGenerator(device_)) return;
    remembered_ = watched_threads == 1;
    if (running == nullptr) forward_ = MicroBatch::open();
    if (forward_ != nullptr && !at::GradMode::is_enabled() && !in_function()) forward_ = nullptr;
    const bool recomputes = running != nullptr && running->recomputes();
    if (generator_ == nullptr && (device_.is_cpu() || composite(op))) {
      inside_ = remembered_ || forward_ != nullptr || recomputes;
      return;
    }
    if (forward_ != nullptr && may_come_again() && !draws_nothing(op, arguments)) forward_->may_draw_again();
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

  // The operators that it consists of draw, and are to be seen.
  bool inside() const { return inside_; }

  // It has run.
  void done() {
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

 private:
  // The default generator of a device has the state of another as long as this lives.
  class InsteadOfDefault {
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

  // In a function of the program's own, which is part of a forward, and whose backward may draw once more.
  bool in_function() const { return remembered_ && forward_->may_compute_for_graph() && program_functions::inside(); }

  // What was drawn from here before.
  void find_before(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments, bool also_over) {
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
  bool of_program() const {
    return given_ || again_ || (remembered_ && (numbers_->follows(before_) || numbers_->seeded_by_program(before_)));
  }

  // The engine's next numbers.
  RandomNumbers::Drawn next() const {
    const RandomNumbers::Drawn drawn{
        .seed = forward_->next_seed(), .mark = RandomNumbers::new_mark(), .begins = before_.seeded};
    if (remembered_) numbers_->remember(key_, drawn);
    return drawn;
  }

  void from_engines(const RandomNumbers::Drawn& drawn) {
    give(*drawn.seed);
    if (remembered_) numbers_->leave(drawn.mark, /*following=*/false);
  }

  // To an operator that takes no generator, as some on devices, in place of the default one.
  void give(std::uint64_t seed) {
    at::Generator generator = numbers_->generator(device_);
    generator.set_current_seed(seed);
    if (generator_ != nullptr) {
      *generator_ = std::move(generator);
    } else {
      instead_.emplace(generator);
    }
  }

  RandomNumbers* numbers_ = nullptr;
  MicroBatch* forward_ = nullptr;  // to which it belongs
  c10::Device device_ = c10::kCPU;
  c10::IValue* generator_ = nullptr;  // the argument, where it takes one
  bool given_ = false;                // which is the default one
  bool remembered_ = false;           // what is drawn
  bool inside_ = false;
  bool from_default_ = false;                   // it draws from the default generator, which is remembered
  RandomNumbers::Place before_;                 // where that is
  std::uint64_t key_ = 0, key_of_default_ = 0;  // of draws from the engine's, and from the default generator
  std::optional<RandomNumbers::Drawn> again_;   // drawn before from here
  std::optional<InsteadOfDefault> instead_;
};

namespace {

void draw(OperatorCall& call) {
  Draw draw(call.op, call.arguments);
  call.inside = call.inside || draw.inside();
  call.proceed();
  draw.done();
}

}  // namespace

constexpr OperatorRule operator_rules::random{.when = OperatorRule::drawing, .around = draw};

}  // namespace zero

#include "backwards/micro_batch.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "backwards/accounts.h"
#include "backwards/activation_window.h"
#include "backwards/checkpointed_pieces.h"
#include "backwards/paged_activations.h"
#include "backwards/random_numbers.h"
#include "backwards/running_backward.h"
#include "base/lifetimes.h"
#include "base/random.h"
#include "zero/error.h"

namespace zero {

struct OpenHere {
  MicroBatch* micro_batch = nullptr;
  MicroBatch* latest = nullptr;  // that was in a forward
  // It is opened elsewhere now, or has ended.
  void forget(const MicroBatch& engines) {
    if (latest == &engines) latest = nullptr;
  }
};

namespace {

bool is_open(MicroBatch::Phase phase) {
  return phase == MicroBatch::Phase::forward || phase == MicroBatch::Phase::evaluation;
}

// Not where a backward uses parameters, with gradients disabled too, nor in a checkpoint of a forward that trains.
bool evaluates(MicroBatch::Phase phase) {
  if (phase == MicroBatch::Phase::forward && CheckpointedForward::runs()) return false;
  return is_open(phase) && !at::GradMode::is_enabled();
}

}  // namespace

MicroBatch::MicroBatch(Accounts& accounts, std::optional<at::ScalarType> autocast, std::uint64_t seed)
    : accounts_(accounts),
      random_{seed, ThreadShared<RandomNumbers>::own()},
      activations_(std::make_unique<Activations>(accounts)) {
  if (autocast) autocast_ = Cast{accounts.where().type(), *autocast};
  random_.numbers->add_device(accounts.where());
  random_.numbers->add(*this);
}

void MicroBatch::observe(const std::weak_ptr<EngineObserver>& observer) {
  observer_ = observer;
  activations_->observe(observer);
}

MicroBatch::~MicroBatch() {
  end_forward();
  if (open_on_) open_on_->forget(*this);
  RunningBackward::forget(*this);
  random_.numbers->remove(*this);
}

MicroBatch* MicroBatch::open() {
  const OpenHere* const here = ThreadShared<OpenHere>::here();
  return here == nullptr ? nullptr : here->micro_batch;
}

MicroBatch* MicroBatch::computing() {
  if (MicroBatch* const here = open()) return here;
  const RunningBackward* const running = RunningBackward::current();
  return running != nullptr && running->recomputes() ? running->forward() : nullptr;
}

MicroBatch* MicroBatch::latest() {
  const OpenHere* const here = ThreadShared<OpenHere>::here();
  return here == nullptr ? nullptr : here->latest;
}

void MicroBatch::used(bool in_function) {
  if (RunningBackward* const running = RunningBackward::current()) return running->uses(*this);
  if (phase_ == Phase::backward) return;
  const bool trains = at::GradMode::is_enabled();
  if (!trains && phase_ == Phase::forward && over()) end_forward();
  if (is_open(phase_)) return;
  if (!trains && before_.evaluation) before_.evaluation();
  if (MicroBatch* const before = open(); before != nullptr) before->end_forward();
  activations_->begin_forward(trains);
  phase_ = trains ? Phase::forward : Phase::evaluation;
  if (trains || in_function) random_.numbers->begin_forward();
  const bool program_casts = autocast_ && at::autocast::is_autocast_enabled(autocast_->device);
  opened_ = {.in_function = in_function, .program_casts = program_casts};
  acting_.emplace(observer_, Activity::forward);
  const std::shared_ptr<OpenHere> here = ThreadShared<OpenHere>::own();
  if (open_on_ && open_on_ != here) open_on_->forget(*this);
  open_on_ = here;
  open_on_->micro_batch = this;
  if (trains) open_on_->latest = this;
}

std::uint64_t MicroBatch::next_seed() {
  if (random_.unseeded) {
    if (before_.seeding) before_.seeding();
    const Numbered now = *std::exchange(random_.unseeded, std::nullopt);
    random_.stream = derived(random_.seed, static_cast<std::uint64_t>(now.index));
    if (now.taken > 0)
      random_.stream = derived(random_.stream, ~static_cast<std::uint64_t>(now.taken));  // no draw has that number
    random_.count = 0;
  }
  return derived(random_.stream, random_.count++);
}

void MicroBatch::next(std::int64_t index, int taken) {
  random_.unseeded = Numbered{index, taken};
}

void MicroBatch::begin_numbers() {
  random_.numbers->end_seed();
}

void MicroBatch::next_step() {
  random_.numbers->step_of(*this);
}

void MicroBatch::keep_open_for(const c10::TensorImpl& result) {
  const auto* const meta = static_cast<const torch::autograd::AutogradMeta*>(result.autograd_meta());
  if (phase_ == Phase::evaluation || meta == nullptr || !meta->grad_fn_) return;
  drop_ended_graphs();
  graphs_.emplace_back(meta->grad_fn_);
}

// The newest first: a node that is referred to keeps what it saved.
void MicroBatch::drop_ended_graphs() {
  while (!graphs_.empty() && graphs_.back().expired()) graphs_.pop_back();
}

bool MicroBatch::over() {
  if (phase_ == Phase::evaluation) return true;
  if (opened_.kept) return false;
  drop_ended_graphs();
  return graphs_.empty();
}

void MicroBatch::end_forward() {
  if (open_on_ && open_on_->micro_batch == this) open_on_->micro_batch = nullptr;
  if (!is_open(phase_)) return;
  phase_ = Phase::none;
  evaluated_.complete();
  attention_.forget();
  graphs_.clear();
  acting_.reset();
  activations_->end_forward();
}

void MicroBatch::enter_backward() {
  if (MicroBatch* const before = open(); before != nullptr) before->end_forward();
  phase_ = Phase::backward;
  evaluated_.foresee(order_.current());
  acting_.emplace(observer_, Activity::backward);
  activations_->begin_backward();
}

void MicroBatch::leave_backward() {
  if (phase_ == Phase::backward) abort();
}

void MicroBatch::begin_backward(bool more_to_come) {
  if (phase_ != Phase::backward) enter_backward();
  order_.more_to_come(more_to_come);
}

void MicroBatch::end_backward() {
  phase_ = Phase::none;
  acting_.reset();
  activations_->end_backward(/*complete=*/true);
  attention_.forget();
  random_.again = false;
  order_.complete();
}

void MicroBatch::abort() {
  end_forward();
  phase_ = Phase::none;
  acting_.reset();
  activations_->end_backward(/*complete=*/false);
  attention_.forget();
  random_.again = false;
  order_.forget();
}

std::optional<Cast> MicroBatch::autocast(bool with_parameters) const {
  const bool casts = with_parameters || !opened_.program_casts || at::autocast::is_autocast_enabled(autocast_->device);
  return casts ? autocast_ : std::nullopt;
}

bool MicroBatch::alone() const {
  return evaluates(phase_) || ActivationWindow::paging_in();
}

void MicroBatch::touched(int unit) {
  if (ActivationWindow::paging_in()) return;
  if (evaluates(phase_))
    evaluated_.touched(unit);
  else if (phase_ != Phase::none || at::GradMode::is_enabled())
    order_.touched(unit);
}

Expected MicroBatch::expected() const {
  return evaluates(phase_) ? evaluated_.next() : order_.next();
}

}  // namespace zero

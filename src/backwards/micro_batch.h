// The phases of an engine's micro-batches, and what is theirs: the seeds of what random operators draw, the dtype to
// which operators are cast, the order in which units are used.
//
// A forward begins when an operator uses a parameter. In it random operators draw from the engine's generator, seeded
// by the micro-batch's global index and the number of the draw in it (random_numbers.h), and in a 16-bit precision
// operators run under LibTorch's autocast. Backward and step end it, and so does, at the next operator, that nothing is
// left of what parameters were used for: to look at a weight between steps is no forward. With gradients disabled it is
// an evaluation, which ends where they are enabled again. So code outside the model is untouched.
//
// Thread-safety: runs on the thread that runs forward and backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backwards/attention.h"
#include "backwards/autocast.h"
#include "backwards/observer.h"
#include "partition/touch_order.h"

namespace torch::autograd {
struct Node;
}

namespace zero {

class Accounts;
class Activations;
struct OpenHere;
class RandomNumbers;

class MicroBatch {
 public:
  enum class Phase : std::uint8_t { none, evaluation, forward, backward };

  // Of an engine on the accounts' device. `autocast`: operators compute there in this dtype.
  MicroBatch(Accounts& accounts, std::optional<at::ScalarType> autocast, std::uint64_t seed);
  ~MicroBatch();
  MicroBatch(const MicroBatch&) = delete;
  MicroBatch& operator=(const MicroBatch&) = delete;

  // The one in a forward or an evaluation on this thread: at most one, of the engine used last.
  static MicroBatch* open();
  // That, or in a backward the one whose forward is computed again.
  static MicroBatch* computing();
  // The one that was in a forward last, over or not.
  static MicroBatch* latest();

  // An operator is about to use parameters: begins a forward or an evaluation, unless one is open or this is a
  // backward. `in_function`: of the program's own, in which gradients are disabled, and which may be part of a forward.
  void used(bool in_function = false);
  // Called before an evaluation begins.
  void before_evaluation(std::function<void()> call) { before_.evaluation = std::move(call); }
  // Called before a forward first draws by the number of next(), which may be called once more there.
  void before_seeding(std::function<void()> call) { before_.seeding = std::move(call); }
  // Whether a backward is under way, of which the forward that was open may be part.
  bool in_backward() const { return phase_ == Phase::backward; }
  // A forward that something keeps, or a backward.
  bool under_way() { return phase_ == Phase::backward || (phase_ != Phase::none && !over()); }
  // What keeps a forward open: the graph of a result, or that a frozen parameter was used.
  void keep_open_for(const c10::TensorImpl& result);
  void keep_open() { opened_.kept = true; }
  // Whether what is open is over, now that gradients are enabled: an evaluation, or a forward that nothing keeps.
  bool over();
  void end_forward();
  // A backward of the program is under way on this thread, of which it is not yet known whether it reaches the engine:
  // begin_backward() may follow.
  void enter_backward();
  // It is over: nothing but what begin_backward() follows on was a micro-batch.
  void leave_backward();
  // `more_to_come`: another one follows before the step.
  void begin_backward(bool more_to_come);
  void end_backward();
  // A forward or a backward failed: the next use begins a new micro-batch.
  void abort();

  // The next forward's random operators are seeded by `index`, and by how many backwards of the step have taken it
  // before, of other losses.
  void next(std::int64_t index, int taken);
  // What follows is another micro-batch.
  void begin_numbers();
  // A step is over: nobody goes back to numbers that were drawn in it.
  void next_step();
  std::uint64_t seed() const { return random_.seed; }
  // From the next forward on.
  void reseed(std::uint64_t seed) { random_.seed = seed; }
  // Of the next draw in a forward.
  std::uint64_t next_seed();
  // Whether what runs with gradients disabled may be part of a forward: in one, or where a function of the program's
  // own began what is open.
  bool may_compute_for_graph() const { return phase_ == Phase::forward || opened_.in_function; }
  // Numbers were drawn with gradients disabled, or under hooks of the program that what is saved for backward goes
  // through, as in checkpoints of activations, which run the operators again in backward.
  void may_draw_again() { random_.again = true; }
  bool drawn() const { return random_.again; }
  // How an operator is cast, one with parameters or another. Where the program has autocast on itself, what
  // has no parameters is cast only where it is still on.
  std::optional<Cast> autocast(bool with_parameters) const;
  // Under which operators run in a forward, if any.
  const std::optional<Cast>& cast() const { return autocast_; }
  // None where nothing is cast.
  AttentionScores* attention() { return autocast_ && attention_.any() ? &attention_ : nullptr; }
  // Modules whose scores it knows by these parameters.
  void add_attention(std::vector<std::string> projections) { attention_ = AttentionScores(std::move(projections)); }

  const Accounts& accounts() const { return accounts_; }
  Activations& activations() { return *activations_; }
  // An operator that forward or backward consists of touches the unit.
  void touched(int unit);
  // Whether what uses units now may do so on this rank alone: without gradients, or to compute activations again.
  bool alone() const;
  Expected expected() const;                                           // the units that are used next
  const std::optional<Trace>& trace() const { return order_.last(); }  // of the last micro-batch

  // Hears of forward and backward.
  void observe(const std::weak_ptr<EngineObserver>& observer);

 private:
  struct Numbered {
    std::int64_t index = 0;
    int taken = 0;
  };

  // The numbers that its operators draw.
  struct Random {
    std::uint64_t seed;
    std::shared_ptr<RandomNumbers> numbers;  // of the engine's thread
    std::optional<Numbered> unseeded = Numbered{};
    std::uint64_t stream = 0;  // of the micro-batch
    std::uint64_t count = 0;   // of draws in it
    bool again = false;        // some may be drawn again in backward
  };
  // What holds of the forward or evaluation that is open, or was last.
  struct Opened {
    bool in_function = false;    // begun in one of the program's own, where a forward looks like an evaluation
    bool program_casts = false;  // under the program's autocast
    bool kept = false;           // a frozen parameter was used
  };
  // Is told before an evaluation begins, and before the first draw of a micro-batch.
  struct Before {
    std::function<void()> evaluation, seeding;
  };

  void drop_ended_graphs();

  Accounts& accounts_;
  Phase phase_ = Phase::none;
  std::shared_ptr<OpenHere> open_on_;  // the thread that it was opened on last
  TouchOrder order_;
  TouchOrder evaluated_{TouchOrder::Of::evaluations};  // what runs without gradients, in a forward too
  std::optional<Cast> autocast_;
  AttentionScores attention_;
  Random random_;
  Opened opened_;
  std::vector<c10::weak_intrusive_ptr<torch::autograd::Node>> graphs_;  // of results
  std::unique_ptr<Activations> activations_;
  Before before_;
  std::weak_ptr<EngineObserver> observer_;
  std::optional<ActivityScope> acting_;
};

}  // namespace zero

// A backward that engines take gradients of: one of an engine, or one of the program, loss.backward(). It is there on
// every thread that works for it: the one that began it, and on a device, where LibTorch runs backwards on threads of
// its own, those.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/lifetimes.h"

namespace zero {

struct ActivationsHere;
class MicroBatch;
class RandomNumbers;

// An engine, as backwards meet it.
class TakesGradients {
 public:
  virtual ~TakesGradients() = default;
  // On the engine's thread, before any backward there and after it, whatever it reaches.
  virtual void before_backward() = 0;
  virtual void after_backward() noexcept = 0;
  // Whether it takes part in backwards of other engines.
  virtual bool joins_others() const = 0;
  // Of one that has begun: whether no rank need wait for anything more from this one before end_gradients().
  virtual bool launched() const = 0;
  // Throws StateError where the program has ended the engine within a backward that it takes part in.
  virtual void require_not_ended() const = 0;
  // Of one that it takes part in: all its gradients have come, and the micro-batch is over. Both are collective.
  virtual void end_gradients() = 0;
  virtual void end_micro_batch(const at::Tensor& loss) = 0;
  // The same where it has failed.
  virtual void drop_step() = 0;
  // Of one that has failed, and that it takes no part in: what a hook that threw has left of its gradients.
  virtual void drop_arrived() = 0;
};

class RunningBackward final : public c10::DebugInfoBase {
 public:
  // Of an engine, or of the program where `leader` is null. `scale`: the loss scale that its gradients have.
  // `forward`: the latest on this thread, null where there was none. `creates_graph`: it runs with gradients enabled.
  RunningBackward(TakesGradients* leader, double scale, MicroBatch* forward, bool creates_graph = false);

  // The innermost that this thread works for, and the outermost; null where it is none.
  static RunningBackward* current() { return static_cast<RunningBackward*>(c10::ThreadLocalDebugInfo::get(kKind)); }
  static RunningBackward* outermost();
  // Whether a backward that runs on this thread may reach the engine, or has.
  static bool concerns(const TakesGradients& engine);

  // Whether engines hear of this thread's backwards.
  static bool heard();

  bool of_program() const { return of_program_; }
  // In the forward numbers were drawn that may be drawn again; see MicroBatch::drawn().
  bool drawn() const { return drawn_; }
  // Whether what runs on this thread is a forward inside the backward, which computes activations again: of
  // torch.utils.checkpoint, which enters autocast for it, with gradients enabled or, where checkpoints are nested, not;
  // of others, which enable gradients.
  bool recomputes() const;
  // Of the engine whose parameters were used last, before it or in it. Null where there is none.
  MicroBatch* forward() const { return forward_; }
  void uses(MicroBatch& engines) { forward_ = &engines; }
  // That one has ended.
  static void forget(const MicroBatch& engines);
  // Of the thread that began it.
  RandomNumbers* numbers() const { return numbers_.get(); }
  const ActivationsHere* activations() const { return activations_.get(); }
  // Whether an engine takes part.
  bool taken() const { return !parts_.empty(); }
  double scale() const { return scale_; }

  // Which engines a backward of `roots` reaches, as far as their graphs tell; an undefined one tells nothing. Before it
  // begins, where several could take part in it.
  void foresee(at::TensorList roots);
  // Whether an engine may wait for the ranks' reductions before the backward ends. Where several take part, a rank may
  // come to them in another order than its peers: so none does while an engine built after it has not launched all of
  // its own, and at the end they are waited for in that order. It is the same on all ranks.
  bool may_wait(const TakesGradients& engine) const;

  // From any of its threads: devices have one each. Engines in the order in which gradients reach them.
  void join(TakesGradients& engine) {
    const std::lock_guard lock(mutex_);
    parts_.push_back(&engine);
  }
  // Once LibTorch has ended it, or has thrown.
  void finish(const at::Tensor& loss);
  void drop();

  // An engine that the program has ended within it lives until Ends does.
  void keep(std::shared_ptr<void> ended) {
    const std::lock_guard lock(mutex_);
    ended_.push_back(std::move(ended));
  }
  class Ends {
   public:
    explicit Ends(RunningBackward& backward) : backward_(backward) {}
    ~Ends() { std::exchange(backward_.ended_, {}).clear(); }
    Ends(const Ends&) = delete;
    Ends& operator=(const Ends&) = delete;

   private:
    RunningBackward& backward_;
  };

  // Makes it current on this thread, and on those that carry out a backward begun here, as long as the guard lives.
  class Guard {
   public:
    explicit Guard(std::shared_ptr<RunningBackward> backward)
        : around_(current() == nullptr), guard_(kKind, std::move(backward)) {
      if (around_) before();
    }
    ~Guard() {
      if (around_) after();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    static void before();
    static void after() noexcept;
    bool around_;  // none is running around it
    c10::DebugInfoGuard guard_;
  };

 private:
  static constexpr std::string_view kName = "a backward of libzero";
  static constexpr c10::DebugInfoKind kKind{&kName};

  bool of_program_;
  bool creates_graph_;
  bool drawn_;
  std::atomic<MicroBatch*> forward_;
  std::thread::id thread_ = std::this_thread::get_id();
  int nesting_;  // of autocast, where it began
  std::shared_ptr<RandomNumbers> numbers_;
  std::shared_ptr<ActivationsHere> activations_;
  double scale_;
  RunningBackward* around_;
  // That can take part, those that were built last first; none: no other than one.
  std::optional<std::vector<TakesGradients*>> foreseen_ = {};
  std::mutex mutex_ = {};
  std::vector<TakesGradients*> parts_ = {};
  std::vector<std::shared_ptr<void>> ended_ = {};
};

// That hear of a thread's backwards, in the order in which they were built.
struct EnginesHere {
  std::mutex mutex;
  std::vector<TakesGradients*> engines;
};
// This thread's, where it has had any; none ends meanwhile.
void with_engines_here(const auto& use) {
  EnginesHere* const here = ThreadShared<EnginesHere>::here();
  if (here == nullptr) return;
  const std::lock_guard lock(here->mutex);
  use(here->engines);
}

// As long as it lives, the engine hears of the backwards of the thread that made it. It may end on any thread, and
// waits while a backward there is being told of.
class HearsOfBackwards {
 public:
  explicit HearsOfBackwards(TakesGradients& engine);
  ~HearsOfBackwards();
  HearsOfBackwards(const HearsOfBackwards&) = delete;
  HearsOfBackwards& operator=(const HearsOfBackwards&) = delete;

 private:
  TakesGradients& engine_;
  std::shared_ptr<EnginesHere> here_;
};

}  // namespace zero

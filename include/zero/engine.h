// Trains any torch::nn::Module under any Plan.
//
//   zero::World world = zero::init();
//   Model model;
//   zero::Engine engine(*model, world, zero::Plan::zero3().bf16(), zero::AdamW{.lr = 3e-4});
//   for (auto& batch : data) {
//     auto loss = model->forward(batch);  // parameters page in and out by themselves
//     engine.backward(loss);              // reduces, shards
//     engine.step();                      // clips, updates, gathers what the plan replicates
//   }
//
// or the loop that the program has: loss.backward(), and the engine, or its optimizer(), in the place of the optimizer.
//
// The module is not changed: its parameters become views of flat storages that the engine pages.
// Forward, backward and step run on the thread that built the engine (its thread-local dispatch keys
// are what notices that a parameter is used); every rank makes the same calls. Forwards without gradients may be more
// on one rank than on another, but under Plan::delay_update(): ranks whose program does something else meanwhile, or
// waits for the others, serve them. The engine ends after its gather scopes, on any thread, and where others may still
// evaluate after release() or a collective of the program's. Several engines may live in one process, on one thread or
// on several. A process that is forked has the parameters that are there, and no engine: to use those that are
// elsewhere or on their way, and whatever else needs the engine's threads or its peers, throws StateError, and what it
// ends of engines and worlds is ended there only.
//
// What changes for the code around a module: gradients are the engine's. Between a backward and the step `.grad()` of a
// parameter is a mark without values: zero_grad() of a module or an optimizer drops what has been gathered since the
// latest step, of all parameters or of some, and to compute with it, as torch::nn::utils::clip_grad_norm_ or another
// optimizer does, throws StateError. Clipping and the optimizer are the engine's too; parameters are written, saved and
// loaded (torch::save, torch::load) inside zero::gather; elsewhere to() and load(), which replace a parameter's memory,
// are refused at the next backward. A hook that the program has on a parameter's accumulated gradient is called with
// this backward's, before it is taken. After a CommError the ranks can no longer be in step: end the process, or at
// least the engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <vector>

#include "zero/activation_report.h"
#include "zero/checkpoint.h"
#include "zero/disk.h"
#include "zero/estimate.h"
#include "zero/float8.h"
#include "zero/ledger.h"
#include "zero/loss_scale.h"
#include "zero/mesh.h"
#include "zero/optimizer.h"
#include "zero/plan.h"
#include "zero/schedule.h"
#include "zero/state.h"
#include "zero/tensor_rule.h"
#include "zero/tier_traffic.h"
#include "zero/traffic.h"
#include "zero/units.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}
namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace zero {

class EngineObserver;

// torch::optim::Optimizer, and what derives from it.
template <class Class>
concept TorchOptimizerClass = requires(Class* derived, torch::optim::Optimizer*& base) {
  base = derived;
};

// What becomes of gradients that another engine's backward brings to an engine's parameters.
enum class OutsideGradients : std::uint8_t {
  // Nothing: as the loop of a GAN, which empties the discriminator's gradients between the generator's backward and its
  // own.
  drop,
  // They are a micro-batch of their own, with that backward's loss; step() is to follow. Both engines need the same
  // loss scale, and on all ranks such a backward has to reach the same engines.
  add,
};

struct Options {
  // Largest global L2 norm of the gradient; larger ones are scaled down to it. 0: no clipping.
  double clip = 0;
  // Seeds the random operators inside the model (dropout) by (seed, global micro-batch index). None: 0 for the world's
  // first engine, and another for each engine that lives beside it.
  std::optional<std::uint64_t> seed = {};
  // First group that takes a parameter wins; parameters in none use the optimizer's own values.
  std::vector<ParamGroup> groups = {};
  // Factor on the learning rate at a step, counted from 0. A function of the step alone, and the same on every rank:
  // some of its values are compared when the engine is built.
  Schedule schedule = {};
  // Parameters that are computed with in their own dtype whatever the plan's precision, `norms` for example.
  std::function<bool(const ParameterInfo&)> full_precision = {};
  // None: dynamic where gradients are computed or reduced in fp16, else 1.
  std::optional<LossScale> loss_scale = {};
  // Which modules are gathered together; empty: units_in_containers(). The same on every rank.
  UnitRule units = {};
  // Parameters that the engine leaves where they are, as they are: the program's own to update and to keep the same on
  // all ranks, in no checkpoint, and never moved or cast. The same on every rank.
  std::function<bool(const ParameterInfo&)> ignored = {};
  // How parameters are cut over the mesh's tensor axis; of an axis of one rank nothing is. The same on every rank.
  TensorRule tensor = {};
  // In how many tiles what is cut is computed with, a power of two that the axis' ranks divide: then sums over it have
  // one order, and any number of ranks along the axis, one too, has the same bits. 1: in none, which is quicker.
  int tensor_grain = 1;
  // Cuts what lies between a row and a column product, norms, dropout and residuals, along the sequence, from an
  // embedding that is cut on: of hidden states [batch, sequence, size] each rank has a part, for the same bytes on the
  // wire (Korthikanti et al. 2022, section 4.2.2). Sequences that the ranks do not divide stay whole.
  bool sequence_parallel = false;
  // Of the inputs of zero::checkpoint() whose function computes with what is cut, each rank of the tensor axis keeps a
  // slice, and all of them are gathered when backward computes again (P_a: ZeRO, section 6.1). Of those that are no
  // leaves, lie in row-major order, and whose elements the ranks divide.
  bool partition_activations = false;
  // Has reports tell of norms by group.
  bool group_norms = false;
  // Under Precision::fp8.
  Float8 float8 = {};
  OutsideGradients outside = OutsideGradients::drop;
  // Where states on Tier::disk are (Plan::offload); directories for each rank of a host alike.
  DiskOptions disk = {};
};

// What one step did, the same on every rank.
struct StepReport {
  bool applied = false;  // false between accumulation boundaries and for a skipped step
  bool skipped = false;  // a gradient was infinite or not a number: nothing was updated, on any rank
  double loss = 0;       // mean over the global batch
  double grad_norm = 0;  // of the mean gradient, before clipping
  // On request: the same of the parameters of each of Options::groups, in their order, and last of those in none.
  std::vector<double> group_norms = {};
  double lr = 0;
  double loss_scale = 1;  // of this step; losses and norms are reported without it
  std::int64_t step = 0;  // steps applied so far
  // All that request() was given, on any rank, before this step's vote and since the one before.
  std::uint32_t requests = 0;
  // Of a save in the background that ended since the step before: the checkpoint's folder, or why there is none.
  std::string saved = {};
  std::string save_fault = {};
  // On this rank, of the thread that calls; the rest of a step is the model's computing.
  double update_seconds = 0;  // the optimizer's work and what it exchanges
  double gather_seconds = 0;  // waiting for parameters, since the step before
  double reduce_seconds = 0;  // waiting for reductions of gradients, since the step before
  double vote_seconds = 0;    // the vote, where ranks wait for the slowest
};

// This rank's part of a parameter's gradient, between the last backward of a step and step().
struct GradientSlice {
  const std::string& parameter;  // as in named_parameters()
  std::int64_t begin;            // of its elements, as they lie in memory
  at::Tensor sum;  // [count], on the parameter's device: over ranks and micro-batches, times the loss scale
  double scale;    // the mean gradient is sum * scale
};

// What release() leaves of parameters that are stored in fewer bits than they had when the engine was built.
enum class ReleaseAs : std::uint8_t {
  given,     // their main values, in the dtype that they had: another engine goes on from them, no bit is lost
  computed,  // as they are computed with, in the plan's dtype, for half the memory: what main weights have beyond is
             // lost
};

class Engine {
 public:
  // Takes the module's parameters over; rank 0's values win, its buffers too. Collective.
  // A world is the mesh that has all ranks along `shard`. A mesh has no pipe axis in this version. Throws ConfigError
  // for a plan, mesh, module or option that cannot work, listing every fault, and CommError when the ranks differ or do
  // not answer. If it throws, the module is as it was; until it returns, a module that was not built by zero::deferred
  // holds its own memory beside the engine's.
  Engine(torch::nn::Module& module, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer,
         Options options = {});
  // The same for a module of TorchScript (torch::jit::load), in fp32.
  Engine(torch::jit::Module& module, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer,
         Options options = {});
  // Leaves the module with whole parameters where the plan replicates them, as they are computed with: in 16 bits what
  // main weights have beyond is gone. Where it shards them the values are gone: call release() first to keep them.
  // Shapes stay, and to read such a parameter throws.
  ~Engine();
  // One that was moved from may be assigned to or end; all else throws StateError. What it is assigned to ends first.
  // Neither is collective.
  Engine(Engine&& other) noexcept;
  Engine& operator=(Engine&& other) noexcept;

  // Backward of a loss of one element, of this rank's micro-batch, whose gradient counts 1 / (N * accumulate).
  // Collective.
  // Several calls before a step add up: those beyond `accumulate` one after the other, in the same order under every
  // plan (a reproducible plan takes them where `accumulate` is 1). If it throws on every rank, the gradients gathered
  // for the step so far are dropped and the engine is ready for the next forward.
  void backward(const at::Tensor& loss);
  // loss.backward(), at::Tensor's own, on the thread that built the engine, does the same for every engine whose
  // parameters it reaches, whatever Options::outside. A gradient that it is given is a factor of the loss that is
  // reported. Where the loss scale is not 1 it throws StateError, unless the loss is what this returns last: the loss
  // times the scale. No other thread.
  at::Tensor scale(const at::Tensor& loss);

  // Drops the gradients gathered for the step so far and what a forward that threw left behind: its
  // place in the stream of random numbers, its recorded order. Every rank must.
  void discard();

  // After `accumulate` backwards (or more): clips, updates, and empties the gradients. Before: does
  // nothing and reports applied = false. Throws StateError, on every rank, when gradients overflow at the
  // lowest loss scale. Collective.
  StepReport step();
  // The same behind the loss and the backward of a closure, whose loss it returns, as optimizers of LibTorch's have it.
  at::Tensor step(const std::function<at::Tensor()>& closure);
  // Between the last backward of a step and step(): what this rank updates, a part of a parameter at a time, where it
  // lies, without a gather. What is written to `sum` is what the step takes, its norm and clipping too; ranks that have
  // the same part (ddp: all of them) must write the same. A parameter that got no gradient on any rank has zeros, and
  // is not updated. `use` calls nothing of the engine, and keeps no `sum`, nor a view of one: both throw when they are
  // read later. Throws StateError at any other time, and where gradients are on
  // another tier than the device. Not collective.
  void for_each_gradient_slice(const std::function<void(const GradientSlice&)>& use) const;
  // A copy of the mean gradient of a parameter in fp32 (fp64), whole, on every rank, at the same time. Throws as that
  // does, and ConfigError for a tensor that is no parameter of the engine. Collective.
  at::Tensor gradient(const at::Tensor& parameter) const;
  // What the latest step() returned, whoever called it.
  const StepReport& last_step() const;

  // The engine as an optimizer of LibTorch's, for code that takes one: step(), with a closure or without, is step();
  // zero_grad() drops the gradients of backwards since the latest step(). It is of the class that LibTorch has for the
  // engine's optimizer, torch::optim::AdamW for zero::AdamW, and an Optimizer where it has none. Parameters with the
  // same hyper-parameters are a group, those in none of Options::groups the first. A group has LibTorch's options of
  // its optimizer, or what a TorchOptimizer has made, or else a learning rate alone. What the program, or a schedule of
  // LibTorch's, sets there is used from the next step on, the same on every rank; the rate times Options::schedule.
  // That step() throws ConfigError for values that cannot be, and for those that other state belongs to: amsgrad,
  // centered, an initial accumulator, a momentum that was 0 or is to be. defaults() and state() are not the engine's.
  // save() and load() throw StateError: Engine::save() is for both. It lives as long as the engine. Not collective.
  torch::optim::Optimizer& optimizer();
  // The same by its class, for code that names it: engine.optimizer<torch::optim::Adam>(). Throws ConfigError where it
  // is of another.
  template <TorchOptimizerClass Class>
  Class& optimizer() {
    auto* const found = dynamic_cast<Class*>(&optimizer());
    if (found == nullptr) refuse_optimizer(typeid(Class));
    return *found;
  }
  // So that an engine may stand where an optimizer stood: `torch::optim::Adam& optimizer = engine;`, or as an argument.
  template <TorchOptimizerClass Class>
  operator Class&() {  // NOLINT(google-explicit-constructor)
    return optimizer<Class>();
  }
  // Of optimizer().
  void zero_grad(bool set_to_none = true);
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();
  // Learning rate of parameters in no group, from the next step on; those of groups change by the same factor, and keep
  // their ratio to it where it is 0 in between. A group whose rate the program has set while this one was 0 has no
  // ratio, and stays as it is. The same on every rank. Throws ConfigError where it is negative or not finite.
  void set_lr(double lr);

  // Bits of the program's own, told to all ranks by the next step's report: so all of them act on what only some have
  // heard, a signal or the end of their data, after the same step. Not collective; on the engine's thread.
  void request(std::uint32_t bits);

  // The global index of the micro-batch that the next backward belongs to, counted over the whole
  // run: use it to choose the data, and every plan and world size sees the same global batches.
  std::int64_t micro_batch() const;

  // Gives the module its parameters back, whole; the engine ends. Collective.
  void release(ReleaseAs as = ReleaseAs::given);

  const Plan& plan() const;
  const Layout& layout() const;
  const std::vector<ParameterRule>& rules() const;  // by parameter, in the layout's order
  Estimate estimate() const;                        // by the trace recorded so far, else Trace::sequential
  Memory memory() const;                            // whether sharded parameters live once for all ranks
  Topologies topologies() const;                    // which the estimate is of
  std::optional<Trace> trace() const;               // of the last complete micro-batch
  Ledger ledger() const;
  // Of this rank since the engine was built, by name: what ran on tensors that are cut.
  std::vector<TensorOperator> tensor_operators() const;
  // What the plan's budget for activations has done in the last micro-batch. Throws nothing.
  ActivationReport activations() const;
  Ledger building() const;  // as it was when the engine was built, with its peaks until then
  void reset_peaks();
  Traffic traffic() const;  // of the steps since construction or reset_traffic()
  // Along the tensor axis, by operators on what is cut: of this rank, likewise.
  Traffic tensor_traffic() const;
  void reset_traffic();
  Traffic setup_traffic() const;  // of construction and of what gather scopes write
  // Between this rank's device and its other tiers: of the steps since construction or reset_traffic(), and of all
  // else, which is construction, what gather scopes write, and state that is told, saved and loaded.
  TierTraffic tier_traffic() const;
  TierTraffic setup_tier_traffic() const;
  std::int64_t steps() const;
  std::int64_t skipped_steps() const;
  double loss_scale() const;  // of the next step

  // A copy of the main value of a parameter in fp32 (fp64), whole, on every rank; of the parameter itself where
  // there are no main weights. Collective.
  at::Tensor main_parameter(const at::Tensor& parameter) const;

  // Everything that the engine needs to go on, by name, without copies. Throws StateError between a backward and the
  // step that it belongs to, and inside a gather scope. Collective; reading the pieces is not.
  EngineState state();
  // Takes over the state of another engine of the same model, optimizer and precision, whatever its plan and number of
  // ranks, and goes on as that one would have, to the bit, as far as plans and numbers of ranks give the same bits. The
  // source's seed replaces the engine's. Parameters that were never updated may come without state of their optimizer,
  // as frozen ones do, which may also not come at all, and then are as they were. Throws ConfigError, listing every
  // fault and nothing being changed, where something is missing, of another type or shape, or not expected, or the
  // ranks' sources differ; StateError as state() does. When a source fails to read on one rank, every rank throws and
  // the engine has ended. Collective.
  void load_state(StateSource& source);

  // Writes what state() tells as `folder`/step-000123, which it returns: all ranks into one folder that they share.
  // When it returns the checkpoint is on the disk, or, in the background, this rank's part is copied
  // (Owner::snapshot). Throws CheckpointError, the same on every rank, naming those that failed, and nothing is
  // published then; training may go on. StateError as state() does. A save in the background that has ended, and whose
  // failure no report has told, is told of first: nothing is saved then, and the next call saves. Collective.
  std::string save(const std::string& folder, const SaveOptions& options = {});
  // Waits for a save in the background, and returns its checkpoint's folder; empty where none was under way, or a
  // report has told of it. Throws what it failed with, as save() does. An engine that ends waits too, but has nobody to
  // tell. Collective.
  std::string finish_save();
  // Goes on from a checkpoint in `folder`: the newest that is whole, those that are damaged being passed over, or that
  // of a step. As load_state(), so under any plan and number of ranks, and from any precision: main weights and
  // parameters become each other. Each rank reads the pieces that what it holds lies in, and checks them on the way;
  // where that finds damage, the checkpoint before is read over it. Throws CheckpointError where there is none that is
  // whole, the same on every rank; if one was read in part by then the engine is to be ended, as where load_state()
  // fails halfway, and find_checkpoint() is how to know before. Else what load_state() throws. Collective.
  Restored load(const std::string& folder, const LoadOptions& options = {});

  // For MemoryAnalyzer::watch(), which see.
  void observe(std::weak_ptr<EngineObserver> observer);

  class Impl;

 private:
  Impl& self() const;
  [[noreturn]] void refuse_optimizer(const std::type_info& wanted);

  std::unique_ptr<Impl> impl_;
};

// While it lives, the parameters given are whole and may be read by any code, also through raw
// pointers, and written under torch::NoGradGuard, or replaced by torch::load or set_data(); at its end what was written
// is kept: each rank keeps its part of its own copy, so all ranks must write the same, or `from_rank` is given and that
// rank's copy wins. Left by an exception, it drops what was written. Parameters that no engine pages are
// left alone. Collective at both ends; a step or release() inside throws StateError.
class Gather {
 public:
  explicit Gather(std::vector<at::Tensor> parameters, std::optional<int> from_rank = {});
  ~Gather() noexcept(false);
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

[[nodiscard]] inline Gather gather(std::vector<at::Tensor> parameters, std::optional<int> from_rank = {}) {
  return Gather(std::move(parameters), from_rank);
}

}  // namespace zero

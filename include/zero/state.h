// Everything that an engine needs to go on, by name: tensors by parameter and kind, in the row-major order of their
// elements, and scalars. How a plan and a number of ranks cut, pad, order and own them does not show, so what one
// engine has, another takes over under any plan, on any number of ranks.
//
//   zero::EngineState state = engine.state();           // every rank
//   for (const zero::StatePiece& piece : state.pieces())
//     if (piece.copy() == 0) piece.read([&](std::int64_t begin, std::int64_t end, const void* values) { ... });
//
//   engine.load_state(source);                          // a StateSource of the program's
//
// Thread-safety: as the engine's, the thread that built it. No torch.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero/dtype.h"

namespace zero {

enum class StateKind : std::uint8_t {
  parameter,    // as it is stored; of a parameter that has no main weight, which it would follow from
  main_weight,  // what the optimizer keeps of a narrower parameter
  remainder,    // what rounding cut off a parameter (Precision::bf16_kahan)
  moment,       // part: what it is, as PyTorch's optimizer of that kind calls it: "exp_avg"; docs/checkpoints.md
  scale,        // of a moment in 8 bits, one for each block; part: the moment's
  row,          // Adafactor's means of squares of the rows, the last dimension being 1
  column,       // of the columns, the last dimension but one being 1
  optimizer,    // what a TorchOptimizer keeps; part: the name that LibTorch gives it
  gathered,     // as it was gathered last, where differences from it travel; may be left out
  error,        // what codes rounded off gradients, where it is fed back, without the loss scale; part: the shard
                // group, of how many, of how many ranks, and micro-batches, "0 of 2 x 4 x 1"; may be left out
  buffer,       // of the module: a buffer, or a parameter of an integer type
};
std::string_view name(StateKind kind);

// A tensor of the state.
struct StateKey {
  std::string name;  // of the parameter or buffer, as in named_parameters(), a shared one's first
  StateKind kind = StateKind::parameter;
  std::string part = {};
  auto operator<=>(const StateKey&) const = default;  // NOLINT(modernize-use-nullptr): for clang-tidy before 15
};
// "layer.weight moment exp_avg"
std::string describe(const StateKey& key);

// Which elements of a parameter share a scale: number them in the order of the parameter's memory (`order`: its
// dimensions from the slowest to the fastest, without those of length 1; empty for row-major order), from `before` on;
// scale b is that of [b * size, (b + 1) * size). An engine takes scales only where these are its own blocks: where the
// parameter's unit has the same parameters, frozen or not, and the parameter the same order in memory.
struct StateBlocks {
  std::int64_t size = 0;
  std::int64_t before = 0;
  std::vector<std::int64_t> order = {};
  bool operator==(const StateBlocks&) const = default;
};

struct StateTensor {
  StateKey key;
  Dtype dtype = Dtype::f32;  // a buffer of a type that is not listed there comes as its bytes, one more dimension
  std::vector<std::int64_t> shape = {};
  std::optional<StateBlocks> blocks = {};  // of a scale
  std::int64_t numel() const;              // of `shape`
  bool operator==(const StateTensor&) const = default;
};
// "fp32 [3, 4]"
std::string describe(const StateTensor& tensor);

// What is no tensor.
struct StateScalars {
  std::int64_t steps = 0;          // applied
  std::int64_t skipped_steps = 0;  // for overflow
  std::int64_t micro_batches = 0;  // of all ranks, in all steps tried: the index of the next step's first one
  std::uint64_t seed = 0;          // of dropout and of stochastic rounding
  std::map<std::string, std::int64_t> updates = {};  // of each parameter
  // Whose state it is, by parameter that is trained: name() of the optimizer. Without, nothing is known of it.
  std::map<std::string, std::string> optimizers = {};

  struct LossScaler {
    double value = 1;
    std::int64_t clean_steps = 0;     // since the last overflow or growth
    std::int64_t overflows_left = 0;  // until it is lowered
    bool operator==(const LossScaler&) const = default;
  };
  std::optional<LossScaler> loss_scaler = {};  // where the loss scale is dynamic

  // The largest magnitudes of the last steps, the newest last.
  struct Float8History {
    std::vector<double> inputs, gradients;
    bool operator==(const Float8History&) const = default;
  };
  std::map<std::string, Float8History> float8 = {};  // by parameter that is computed with in FP8

  bool operator==(const StateScalars&) const = default;
};

// What one rank holds of one tensor.
class StatePiece {
 public:
  using Ranges = std::function<void(std::int64_t begin, std::int64_t end)>;
  using Read = std::function<void(std::int64_t begin, std::int64_t end, const void* values)>;
  class Values;  // where they are

  StatePiece(std::size_t tensor, std::int64_t count, int copy, int copies, std::shared_ptr<const Values> values);

  std::size_t tensor() const { return tensor_; }  // index into EngineState::tensors()
  std::int64_t count() const { return count_; }   // elements
  // So many ranks hold these very elements, numbered from 0; this is copy() of them. Of buffers copy 0's values are the
  // ones that count.
  int copies() const { return copies_; }
  int copy() const { return copy_; }

  // Tells of its elements as ranges [begin, end) of the tensor in row-major order, ascending, as few as there are: one,
  // where the parameter lies in that order in memory too.
  void ranges(const Ranges& tell) const;
  // The same with the values, which are there until `take` returns; without a copy where they are in memory, in as many
  // parts as they lie in there. Throws StateError when the engine has gone on since, or ended.
  void read(const Read& take) const;

 private:
  std::size_t tensor_;
  std::int64_t count_;
  int copy_, copies_;
  std::shared_ptr<const Values> values_;
};

// The state of an engine, where it is: valid until the engine's next step(), load_state(), release(), or gather scope;
// where errors are fed back (Plan::error_feedback), until its next backward.
class EngineState {
 public:
  EngineState(StateScalars scalars, std::vector<StateTensor> tensors, std::vector<StatePiece> pieces);

  // These two are the same on every rank. A tensor without elements has no pieces, of any other every element is in a
  // piece of some rank.
  const StateScalars& scalars() const { return scalars_; }
  const std::vector<StateTensor>& tensors() const { return tensors_; }
  const std::vector<StatePiece>& pieces() const { return pieces_; }  // this rank's

 private:
  StateScalars scalars_;
  std::vector<StateTensor> tensors_;
  std::vector<StatePiece> pieces_;
};

// What an engine loads its state from.
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual const StateScalars& scalars() const = 0;
  virtual const std::vector<StateTensor>& tensors() const = 0;
  // Writes elements [begin, end) of tensors()[tensor] in row-major order to `values`. Called for what this rank holds,
  // stretch by stretch; where a parameter lies in another order in memory, also for what is in between.
  virtual void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) = 0;
};

}  // namespace zero

// What one rank writes of a checkpoint; copied, the engine goes on while it is being written. What several ranks have
// is written by one of them: a large piece is cut into as many parts as there are copies, a small one falls to one of
// them, by its name. So every rank knows its own without asking the others. No torch.
//
//   Snapshot snapshot(engine.state(), communicator.rank());
//   write_checkpoint(..., snapshot, ...);   // before the next step, from where the state is
//
//   std::vector<char> memory(snapshot.bytes());
//   snapshot.take(memory.data());           // or: before the next step
//   write_checkpoint(..., snapshot, ...);   // any time, on any thread
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "persist/manifest.h"
#include "zero/checkpoint.h"
#include "zero/state.h"

namespace zero {

class Snapshot {
 public:
  // Elements [first, last) of a piece, or all of a user tensor.
  struct Slice {
    std::size_t source;  // index into the pieces, or the user tensors
    bool user;
    std::size_t tensor;  // index into tensors(); not of a user tensor
    std::int64_t item;   // bytes of an element
    std::int64_t first, last;
    std::int64_t offset;   // in the memory
    ElementRuns elements;  // not of a user tensor
    std::int64_t bytes() const { return (last - first) * item; }
  };

  // The state's, and user tensors', values stay there until take() has returned, or all is read.
  Snapshot(const EngineState& state, int rank, std::vector<UserTensor> user_tensors = {});

  std::int64_t bytes() const { return bytes_; }
  // Copies them to `memory`, which then stays until everything is written, and lets go of the engine's. Once. Throws
  // StateError when the engine has gone on.
  void take(void* memory);
  // That memory: the slices' bytes in their order; null before.
  const char* copy() const { return memory_; }

  // The bytes of a slice, of the copy or of the engine's own, stretch by stretch in their order. Throws as take().
  using UseBytes = std::function<void(const void* bytes, std::int64_t count)>;
  void read(const Slice& slice, const UseBytes& use) const;

  int rank() const { return rank_; }
  const StateScalars& scalars() const { return scalars_; }
  const std::vector<StateTensor>& tensors() const { return tensors_; }
  const std::vector<UserTensor>& user_tensors() const { return user_tensors_; }
  const std::vector<Slice>& slices() const { return slices_; }  // in the order of the memory, without gaps

 private:
  void add_pieces();

  StateScalars scalars_;
  std::vector<StateTensor> tensors_;
  std::vector<StatePiece> pieces_;
  int rank_;
  std::vector<UserTensor> user_tensors_;
  std::vector<Slice> slices_;
  std::int64_t bytes_ = 0;
  const char* memory_ = nullptr;  // before take()
};

}  // namespace zero

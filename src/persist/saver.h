// Saves of one engine: in the caller's time, or behind it, on a thread and among ranks of their own. No torch.
#pragma once

#include <optional>
#include <string>

#include "base/worker.h"
#include "memory/block.h"
#include "persist/checkpoint_writer.h"
#include "persist/retention.h"

namespace zero {

// What is to be saved, and how.
struct SaveOrder {
  std::string folder;
  Snapshot snapshot;
  CheckpointOptions options;
  Keep keep;
};

// write_checkpoint(), and then what is not to be kept is removed. Collective. Throws CheckpointError, the same on every
// rank, and CommError.
std::string save_checkpoint(Env& env, const Communicator& ranks, const SaveOrder& order);

// One save at a time. The thread that has it drives it; `ranks` are used by nothing else.
class Saver {
 public:
  Saver(Env& env, Communicator ranks) : env_(env), ranks_(std::move(ranks)) {}
  // Waits for a save that is under way, of whose failure nobody hears.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // None is under way. The snapshot is taken, and its memory stays until finish() returns. Collective.
  void begin(SaveOrder order);
  // From begin() to finish().
  bool under_way() const { return order_.has_value(); }
  // Whether it has ended here; the other ranks may not be as far.
  bool ended() const { return under_way() && pending_.done(); }
  // Waits for it, and returns the checkpoint's folder. Throws what save_checkpoint() throws. Collective.
  std::string finish();

 private:
  Env& env_;
  Communicator ranks_;
  std::optional<SaveOrder> order_;
  std::string saved_;
  Pending pending_;
  Worker worker_;  // last: joined before the rest goes
};

}  // namespace zero

// An engine's state: told by name, taken over from another engine, saved to checkpoints and loaded from them.
//
// Thread-safety: the thread that runs forward, backward and step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/accumulation.h"
#include "engine/adapted_source.h"
#include "engine/engine_entry.h"
#include "engine/parameters.h"
#include "engine/step.h"
#include "partition/element_order.h"
#include "partition/state_tensors.h"
#include "persist/saver.h"
#include "update/state_span.h"
#include "zero/checkpoint.h"
#include "zero/state.h"

namespace zero {

class Saving {
 public:
  // `replicated` as they are when the engine is built.
  Saving(Trained& trained, EngineRanks& ranks, Liveness& life, Parameters& parameters, Accumulation& accumulation,
         Step& step, const Entry& entry, std::vector<Replicated> replicated);

  // See Engine. `frozen`: of parameters that are not trained too.
  EngineState state(bool frozen = true);
  void load_state(StateSource& source);
  std::string save(const std::string& folder, const SaveOptions& options);
  std::string finish_save() { return saver_ ? saver_->finish() : std::string(); }
  Restored load(const std::string& folder, const LoadOptions& options);
  // Whether a save in the background has ended on this rank, and how it did, where it has on all.
  bool save_ended() const { return saver_ && saver_->ended(); }
  void report_save(StepReport& report);

 private:
  class Loading;
  struct LoadFault {
    std::string text = {};
    bool damaged = false;  // what was read, and no other failure
  };

  EngineState told(bool frozen);
  StateScalars scalars();
  ElementOrder order_of(int parameter) const;
  ElementOrder order_of(const StateTensor& tensor, int parameter) const;
  std::vector<ExpectedParameter> expected_state() const;
  void look_at_buffers();
  ExpectedBuffers buffers_of_state() const;
  void agree_on_buffers(const std::vector<StateTensor>& buffers);
  void each_at_rest(Unit& unit, StateKind kind, const std::function<BlockPart(const Slice&)>& stored,
                    const VisitState& tell) const;
  void each_parameter(Unit& unit, const VisitState& tell) const;
  void each_base(Unit& unit, const VisitState& tell) const;
  // By slot, what differences are from.
  std::vector<StateTensor> bases_of(const Unit& unit) const;
  // What gradients' codes have rounded off, of this rank's shard group; and, by slot, of all of them.
  void each_error(const Unit& unit, const VisitState& tell);
  std::vector<StateTensor> errors_of(const Unit& unit) const;
  void take_over(StateSource& source);
  void read_over(StateSource& source);
  StateFit agree_on_state(const StateSource& source);
  void agree_on_loading(const LoadFault& fault);
  void resume(const StateScalars& scalars);
  void exchange_files(Exchange::Kind kind, const std::function<void(const Communicator& all)>& work);
  void make_way(WhileSaving how);
  void require_ready(const SaveOptions& options);
  std::string write(const std::string& folder, const SaveOptions& options);
  SaveOrder order(const std::string& folder, const SaveOptions& options);
  std::string copy(Snapshot& snapshot);
  Restored load_newest(const std::string& folder, const LoadOptions& options);
  Restored load_one(const std::string& place, const LoadOptions& options);

  Trained& trained_;
  EngineRanks& ranks_;
  Liveness& life_;
  Parameters& parameters_;
  Accumulation& accumulation_;
  Step& step_;
  const Entry& entry_;
  std::vector<Replicated> replicated_;  // as they were when they were looked at last
  Block snapshot_;                      // kept from one save in the background to the next
  std::unique_ptr<Saver> saver_;        // null before the first of them
  // The checkpoint that it goes on from: rank 0's. The Saver's while a save is under way.
  std::shared_ptr<std::optional<Origin>> behind_ = std::make_shared<std::optional<Origin>>();
};

}  // namespace zero

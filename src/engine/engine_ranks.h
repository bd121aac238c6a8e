// The ranks that an engine trains on, and the memory of this one: groups of the engine's own along the mesh, the
// accounts, the exchange, and what is counted of it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backwards/accounts.h"
#include "comm/mesh_groups.h"
#include "comm/metered.h"
#include "engine/trained.h"
#include "parallel/tensor_axis.h"
#include "units/exchange.h"
#include "zero/error.h"
#include "zero/mesh.h"

namespace zero {

class EngineRanks {
 public:
  // `mesh` with its tensor axis. Collective. Throws CommError where the ranks build different engines.
  EngineRanks(const Trained& trained, const Inventory& inventory, const Mesh& mesh);

  int rank() const { return exchange_.rank(); }
  int size() const { return exchange_.size(); }
  const MeshShape& mesh() const { return exchange_.mesh(); }
  Exchange& exchange() { return exchange_; }
  Accounts& accounts() { return accounts_; }
  const Accounts& accounts() const { return accounts_; }
  Device& device() const { return accounts_.device(); }

  // Of the ranks at this one's place along the data axes, what they are cut over; null: nothing is.
  const std::shared_ptr<TensorAxis>& tensor() const { return tensor_; }
  // Every rank's `words`, as many on each: by place along the tensor axis, then as Exchange::table() has them.
  std::vector<std::int64_t> table(Exchange::Kind kind, std::span<const std::int64_t> words);

  // All ranks of the mesh, those along the tensor axis too: how many, and which this one is.
  const MeshShape& whole_mesh() const { return whole_mesh_; }
  int all_ranks() const { return whole_mesh_.size(); }
  int rank_of_all() const;
  int places() const { return all_ranks() / size(); }  // along the tensor axis
  // What all of them tell each other: see Exchange::confer().
  void confer(Exchange::Kind kind, const std::function<void(const Communicator& all)>& talk);

  // The random numbers' seed: the one that was given, else by rank 0's number of the engine, since engines side by side
  // are not to draw the same numbers.
  std::uint64_t seed() const { return seed_; }
  // What steps receive, and what everything else does.
  const std::shared_ptr<TrafficMeter>& meter() const { return meter_; }
  const std::shared_ptr<TrafficMeter>& tensor_meter() const { return tensor_meter_; }
  const TrafficMeter& setup_meter() const { return *setup_meter_; }
  Topologies topologies() const;
  // The engine is built; and what it held then, with the peaks until then.
  void built();
  const Ledger& building() const { return building_; }

 private:
  std::shared_ptr<const int> number_;  // among the world's engines
  std::shared_ptr<TrafficMeter> meter_, setup_meter_, tensor_meter_;
  MeshGroups groups_;  // not metered, as the next
  std::uint64_t seed_;
  Accounts accounts_;
  MeshShape whole_mesh_;
  std::shared_ptr<TensorAxis> tensor_;
  std::shared_ptr<void> partitioned_inputs_;  // of checkpoints, along it
  Communicator all_;                          // where there is a tensor axis; on the exchange's thread
  MeshGroups data_groups_;                    // for what is where the engine computes
  Exchange exchange_;
  Ledger building_;
};

// Whether an engine can be called.
class Liveness {
 public:
  // Throws StateError.
  void require() const;
  void release() { released_ = true; }
  // Why nothing can be done any more; null where something can.
  const char* poison() const { return poison_; }

 private:
  friend class Critical;
  const char* poison_ = nullptr;
  bool released_ = false;
};

// Changes of state that fail halfway where an exception leaves them: the engine cannot be called from then on.
class Critical {
 public:
  // `failure`: what then is to be said.
  Critical(Liveness& life, const char* failure) : life_(life), before_(std::exchange(life.poison_, failure)) {}
  ~Critical() {
    if (std::uncaught_exceptions() == exceptions_) life_.poison_ = before_;
  }
  // What had failed before is whole again, too, where this ends well.
  void mend() { before_ = nullptr; }
  Critical(const Critical&) = delete;
  Critical& operator=(const Critical&) = delete;

 private:
  Liveness& life_;
  const char* before_;
  int exceptions_ = std::uncaught_exceptions();
};

// Calls; an Error that leaves says on which rank it was, but for a CheckpointError, which is the same on every rank.
template <class Call>
decltype(auto) naming_rank(int rank, const Call& call) {
  try {
    return call();
  } catch (const CheckpointError&) {
    throw;
  } catch (Error& error) {
    error.name_rank(rank);
    throw;
  }
}

}  // namespace zero

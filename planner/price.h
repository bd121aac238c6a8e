// What each plan costs on a cluster that is not there. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/activations.h"
#include "planner/profile.h"
#include "planner/recomputation.h"
#include "planner/seconds.h"
#include "planner/shape.h"
#include "planner/tensor_wire.h"
#include "zero/estimate.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace planner {

struct Request {
  Shape shape;
  int ranks = 1;
  int hosts = 1;                                   // of as many ranks each, over two levels
  int shard = 0;                                   // ranks of a shard group; 0: all
  std::optional<std::int64_t> device_memory = {};  // bytes for a rank; none: no limit
  // Bytes of a host, for what its ranks keep on that tier; none: no limit.
  std::optional<std::int64_t> host_memory = {};
  std::optional<std::int64_t> disk_space = {};
  // Plans that do not fit may have states on the tiers whose limits are given.
  bool chooses_tiers = false;
  // Where no plan fits, they may have an activation budget, and more and smaller micro-batches.
  bool chooses_activations = false;
  std::int64_t batch = 4;  // sequences of a micro-batch
  std::int64_t seq = 128;  // tokens of a sequence
  zero::Optimizer optimizer = zero::AdamW{};
  zero::Memory memory = zero::Memory::separate;
  bool in_host_memory = false;                              // ranks compute there, whatever the profile is of
  ProductScratch product_scratch = ProductScratch::blocks;  // of the processors that compute it
  Profile profile = {};
  std::vector<zero::Plan> plans = {};
  std::vector<std::string> assumed = {};  // sentences about what was left open

  // Of ranks that have the same part of the model. Throws zero::ConfigError where shard groups do not divide them.
  zero::MeshShape mesh() const { return {ranks / shape.tensor, {.shard = shard}}; }
  // Of a host, likewise.
  int data_ranks_per_host() const { return ranks / hosts / shape.tensor; }
};

// Bytes are those of one rank.
struct Cost {
  zero::Plan plan;
  zero::Estimate estimate;
  Activations activations;
  std::int64_t batch = 1;    // sequences of a micro-batch
  Recomputation again = {};  // of a micro-batch, where the plan has an activation budget
  std::int64_t padding = 0;  // of the state, what belongs to no parameter: the mean over the ranks
  std::int64_t peak = 0;
  std::string moment = {};  // of the peak
  TensorWire tensor = {};   // of a step, along the tensor axis
  double seconds = 0;       // of a step; not a number: not known, as its speed
  Speed speed = {};
  double dearer = 0;                      // by so many of them than with memory for what was asked for
  std::vector<std::string> missing = {};  // keys of the profile, without which it is not known
  TierSeconds tiers = {};
  bool rounds = false;                            // what ranks compute with (loss_price.h)
  std::int64_t excess = 0;                        // of the peak over the device's memory; not positive: it fits
  std::int64_t host_excess = 0, disk_excess = 0;  // of all ranks of a host, likewise

  bool fits() const { return excess <= 0 && host_excess <= 0 && disk_excess <= 0; }
  bool priced() const { return missing.empty(); }
  // Of a step, received by one rank.
  std::int64_t wire() const { return estimate.wire.bytes(); }
};

// The largest sum of an estimate and of what a micro-batch holds, on one rank, and when it is reached.
struct Peak {
  std::int64_t bytes = 0;
  std::string moment = {};
};
Peak peak_of(const zero::Estimate& estimate, const Activations& activations);

// The layout and the order of use of the shape's parameters under a plan, and what updates them: as an engine has them,
// but for layers that are alike, which are laid out once.
struct Arrangement {
  zero::Layout layout;
  zero::Repeats repeats;  // of each of its units
  std::vector<zero::ParameterRule> rules;
  zero::Trace trace;

  Arrangement(const Shape& shape, const zero::Plan& plan, const zero::Optimizer& optimizer,
              const zero::MeshShape& mesh);
};
zero::Estimate estimate(const Shape& shape, const zero::Plan& plan, const zero::Optimizer& optimizer,
                        const zero::MeshShape& mesh, zero::Memory memory = zero::Memory::separate, int hosts = 1);

// Steps of more of them are not priced: bytes of a rank could pass what 64 bits hold.
int most_micro_batches(const Shape& shape);

// Throws zero::ConfigError for a plan that cannot work on the request's ranks, hosts that do not divide the ranks, and
// sequences longer than the model's positions.
Cost price(const Request& request, const zero::Plan& plan);
// But for the time that an activation budget takes, and whether it can be met, which is long to find out.
Cost price_bytes(const Request& request, const zero::Plan& plan);
// Of all its plans; where tiers are chosen, of the first choice that fits.
std::vector<Cost> price(const Request& request);

MicroBatch micro_batch(const Request& request, const zero::Plan& plan);
// Whether parameters are there only while they are used.
bool gathers_parameters(const zero::Plan& plan, const zero::MeshShape& mesh);
// How fast ranks compute so, for what is computed again.
Pace pace_for(const Profile& profile, zero::Precision precision);

}  // namespace planner

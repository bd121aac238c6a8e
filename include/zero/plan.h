// A ZeRO stage as data. A Plan is a table: a row for each kind of state of the training, saying where
// it lives and in what form. The engine executes the table, the estimator prices it; neither knows
// the stages by name. A collective is a transition between two placements (ZeRO, section 5; the
// presets are P_os, P_os+g and P_os+g+p of its figure 1).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero/dtype.h"
#include "zero/mesh_shape.h"

namespace zero {

enum class State : std::uint8_t { parameter, gradient, optimizer, activation };
inline constexpr int kStates = 4;

enum class Placement : std::uint8_t {
  replicated,  // every rank holds the whole
  partial,     // every rank holds a whole-sized addend: the sum over ranks is the value
  sharded,     // each rank holds a slice
};
enum class Tier : std::uint8_t { device, host, disk };
inline constexpr int kTiers = 3;
// How values travel. fp8: E4M3 in blocks of 32 with a power of two each; int8, int4: whole numbers in blocks with a
// step. int4_differences: of parameters, what they differ by from what receivers have. bf16_codes: a codec as the
// others, where gradients on wire `bf16` are rounded by each rank. fp64 values travel as they are.
enum class Wire : std::uint8_t {
  native,
  fp32,
  bf16,
  fp16,
  fp8,
  int8,
  int4,
  int4_hadamard,
  int4_differences,
  bf16_codes,
};
// fp32 computes with every parameter in its own dtype, the others with fp32 parameters in 16 bits. The first three of
// these keep fp32 main weights with the optimizer; of fp16 the loss is scaled. The others have no main weights.
enum class Precision : std::uint8_t {
  fp32,
  bf16,
  fp16,
  fp8,         // as bf16, with linear layers computed in FP8: see Float8
  bf16_pure,   // updated weights are rounded to the nearest: small updates are lost, for comparison only
  bf16_sr,     // stochastic rounding: small updates count on average
  bf16_kahan,  // a bf16 remainder beside each weight: small updates add up (Kahan's compensation)
};

// What becomes of the part of an updated weight that its stored dtype cannot hold.
enum class Remainder : std::uint8_t { main_weights, lost, random, kept };

// What stays of a parameter that a step's first gather has brought, until it is updated: what is gathered again comes
// from there (ZeRO++'s hpZ, section 3.2, of the values themselves). What is not trained stays for good.
enum class KeptCopy : std::uint8_t {
  none,
  shard,  // on each rank its slice of it among those of its shard group, which then gathers it inside
  host,   // all of it, once in the memory that a shard group has in common; where it has none, on each rank
};

std::string_view name(State state);
std::string_view name(Placement placement);
std::string_view name(Tier tier);
// Throws ConfigError, listing them, for another name.
State state_named(std::string_view name);
Tier tier_named(std::string_view name);
std::string_view name(Wire wire);
std::string_view name(Precision precision);
std::string_view name(KeptCopy copy);
// Throws ConfigError, listing them, for another name.
KeptCopy kept_copy_named(std::string_view name);
// Of all of them. Throws ConfigError, listing them, for another name.
Precision precision_named(std::string_view name);
std::vector<std::string_view> precisions();

// Along each axis of the mesh. What is sharded along `shard` and `replica` is divided over all data-parallel ranks
// (`data`); along `shard` alone, over those of a shard group, of which the replicas have the same.
struct Placements {
  Placement pipe = Placement::replicated;
  Placement replica = Placement::replicated;
  Placement shard = Placement::replicated;
  Placement tensor = Placement::replicated;
  // The same along all data-parallel ranks.
  static constexpr Placements over_data(Placement placement) { return {.replica = placement, .shard = placement}; }
  bool operator==(const Placements&) const = default;
};

struct Row {
  Placements rest = {};     // when nothing is under way
  Placements between = {};  // the micro-batches of one step
  Tier tier = Tier::device;
  Wire wire = Wire::native;
  double share = 1;  // of its bytes, what is on the tier; the rest stays on the device
  bool operator==(const Row&) const = default;
};

// Of a rank, for what operators allocate in a micro-batch: so many bytes, or a share of what the largest micro-batch so
// far takes without a budget. Of neither: no budget.
struct ActivationBudget {
  std::int64_t bytes = 0;
  double share = 0;

  // "2GiB", "500M", "50%"; "": none. Throws ConfigError for another text.
  static ActivationBudget named(std::string_view text);
  std::string text() const;
  explicit operator bool() const { return bytes > 0 || share > 0; }
  bool operator==(const ActivationBudget&) const = default;
};

class Plan {
 public:
  static Plan ddp();    // stage 0
  static Plan zero1();  // P_os
  static Plan zero2();  // P_os+g
  static Plan zero3();  // P_os+g+p
  // zero3 within each shard group, the groups being replicas (MiCS, HSDP): parameters never cross hosts, a gradient
  // does with 1/S of its bytes. On a mesh of one group the same as zero3.
  static Plan hybrid();
  // Likewise, but gradients and the optimizer are sharded over all ranks, as zero2 does it over the groups: less memory
  // for the same bytes on the wire.
  static Plan hybrid_zero2();
  // zero3 on a mesh of several shard groups, hosts for example, with less between them (ZeRO++): parameters gathered in
  // 8 bits, once a step, and kept until the update; gradients rounded to 4 bits where they cross. Losses are not
  // zero3's; on a mesh of one group, only what is gathered is rounded.
  static Plan zeropp();
  // Likewise, with 4 bits of each (SDP4Bit, arXiv 2410.15526): of parameters, what they differ by from what was
  // gathered before, which stays; gradients mixed before they are rounded. On a mesh of one group nothing is rounded.
  static Plan sdp4bit();

  // The preset of that name. Throws ConfigError, listing the presets.
  static Plan named(std::string_view preset);
  static std::vector<std::string_view> presets();
  static std::vector<std::string_view> exact_presets();  // those of which all give the same bits
  static std::vector<std::string_view> stages();         // those that take no mesh: ddp, zero1, zero2, zero3

  // The preset whose rows these are, in placements and axes; "custom" where there is none. Of a table as it is on a
  // mesh, where an axis of one rank shards nothing, the preset's it was.
  std::string preset() const;
  // The same, then a part for each tier below the device's that states are on, and for a delayed update: "zero3, all on
  // disk"; "zero2, gradient and 0.8 of optimizer on host"; "zero2, gradient on host, optimizer on disk, delayed
  // update".
  std::string label() const;
  const Row& operator[](State state) const { return rows_[static_cast<std::size_t>(state)]; }
  Row& operator[](State state) { return rows_[static_cast<std::size_t>(state)]; }

  // Copies with one setting changed.
  [[nodiscard]] Plan fp32() const { return precision(Precision::fp32); }
  [[nodiscard]] Plan bf16() const { return precision(Precision::bf16); }
  [[nodiscard]] Plan precision(Precision precision) const { return with(&Plan::precision_, precision); }
  // Micro-batches that a rank computes for one step.
  [[nodiscard]] Plan accumulate(int micro_batches) const { return with(&Plan::accumulate_, micro_batches); }
  // Sums over micro-batches along one tree.
  [[nodiscard]] Plan reproducible(bool on) const { return with(&Plan::reproducible_, on); }
  // Gradients are rounded to f32, bf16 or f16 when they travel, whatever their own dtype, and added in the accumulation
  // dtype; not those of fp64 parameters. On one rank nothing travels. Throws ConfigError for another dtype.
  [[nodiscard]] Plan reduce_in(Dtype dtype) const;
  // The same by a wire: fp32, bf16, fp16, or native, as they are. One of a codec: as they are inside shard groups,
  // whose sums are coded once, where they go to others of the mesh, decoded there and added up in the accumulation
  // dtype (after ZeRO++'s qgZ, section 3.3, which rounds inside groups, too). In bf16_codes, they take what the model
  // takes in 16 bits, which is what ZeRO counts (section 7).
  [[nodiscard]] Plan reduce_in(Wire wire) const;
  // What such a codec rounds off a rank's sums where they cross is kept there, in 8 bits, and is part of what it sends
  // of them next: late, and not lost (error feedback, as LoCo has it, arXiv 2407.04480). It begins anew every
  // kErrorSteps steps, where a step is skipped, and where the loss scale changes, and is part of checkpoints. A byte an
  // element that crosses. On a mesh of one shard group nothing crosses, and there is none.
  static constexpr int kErrorSteps = 1024;
  [[nodiscard]] Plan error_feedback(bool on) const { return with(&Plan::error_feedback_, on); }
  // Sharded parameters travel so, and are computed with as they arrive, on two ranks or more; zero::gather sees them,
  // and a forward inside it computes with them, as they are. As differences: each rank keeps a copy (keep_gathered),
  // and what an owner's values differ by from it is rounded, sent and added to it, on all ranks alike; what is rounded
  // off is part of the next difference (SDP4Bit, section 3.1). The first time, and after a gather scope, they travel as
  // they are. Copies are part of checkpoints. Where a slice was to be kept, on a mesh of one
  // shard group, they travel as they are.
  [[nodiscard]] Plan gather_in(Wire wire) const;
  // Of parameters sharded over all ranks of a mesh with several shard groups, hosts for example: only the first gather
  // of a step crosses groups, and the bits are those of doing without. On a mesh of one group `shard` keeps nothing,
  // there being nothing to cross. Throws no error: see faults().
  [[nodiscard]] Plan keep_gathered(KeptCopy copy) const;
  // The state's bytes lie on that tier and pass through buffers of constant size (ZeRO-Offload, ZeRO-Infinity): the
  // optimizer's under every plan, gradients where a rank holds no more than its slice over all, parameters
  // where it updates all that it holds. Host: of a model on a device. Disk: see Options::disk.
  //
  // Of the optimizer, `share` of its bytes or a little more (Twin-Flow of ZeRO-Offload++): units in the layout's order
  // keep their state on the device, and their gradients with it, as far as the rest goes. They are updated there,
  // beside the others.
  [[nodiscard]] Plan offload(State state, Tier tier, double share = 1) const;
  // The update of a step is computed beside the next one's forward and backward, which compute with the parameters of
  // the step before (one-step delayed parameter update, ZeRO-Offload, section 5.2). What is late is awaited by the next
  // step's vote, and by whatever else sees parameters or state: checkpoints, gather scopes, evaluations, all of which
  // are collective then. Of an optimizer element by element, offloaded with all of its bytes, parameters being on the
  // device, and of a model on a device, whose gradients are offloaded too.
  [[nodiscard]] Plan delay_update(bool on = true) const { return with(&Plan::delays_update_, on); }
  // For parameters paged in; 0: that of the largest units, of which one is used and the others are brought ahead: two,
  // or one more with each that is on its way beside the first (overlap), three where they are on another tier.
  [[nodiscard]] Plan resident_budget(std::int64_t bytes) const { return with(&Plan::resident_budget_, bytes); }
  // So many units on their way at once beside computing: gathered ahead of their use, where all ranks gather together,
  // and, apart from these, their gradients reduced, each in a flat array. Above 1 such gathers and reductions go beside
  // each other, too, gathers first on a link. 0: 2 where ranks are on several hosts and the plan reduces each
  // micro-batch, else 1. At most kMostOverlap. The bits are the same.
  static constexpr int kMostOverlap = 2;
  [[nodiscard]] Plan overlap(int units) const { return with(&Plan::overlap_, units); }
  // Activations are kept within so much (ZeRO-R, section 6.1, for any model): what is cheapest to compute again loses
  // its memory, and has it back when an operator touches it, with the same bits. See docs/activations.md. On a device,
  // what operators return counts. With offload(State::activation, tier), what costs less to bring from there than to
  // compute again goes there: to the host, of a model on a device, or to disks, of one on the host.
  [[nodiscard]] Plan activation_budget(ActivationBudget budget) const {
    return with(&Plan::activation_budget_, budget);
  }
  // Within that budget, what products of a forward read may be kept in 8 bits, fp8 or int8, until backward reads it:
  // all of it is rounded so, whatever the budget is, and gradients with it. Native: as it is.
  [[nodiscard]] Plan activations_in(Wire wire) const;

  Precision precision() const { return precision_; }
  int accumulate() const { return accumulate_; }
  bool reproducible() const { return reproducible_; }
  bool delays_update() const { return delays_update_; }
  bool error_feedback() const { return error_feedback_; }
  std::optional<Dtype> reduction() const;  // as chosen by reduce_in()
  KeptCopy kept() const;                   // as chosen by keep_gathered()
  std::int64_t resident_budget() const { return resident_budget_; }
  int overlap() const { return overlap_; }
  int on_their_way() const { return overlap_ == 0 ? 1 : overlap_; }  // units at once, of each kind
  const ActivationBudget& activation_budget() const { return activation_budget_; }

  bool float8() const { return precision_ == Precision::fp8; }
  // The dtype in which a parameter of `dtype` is stored for computing.
  Dtype compute_dtype(Dtype dtype) const;
  // The same for every parameter that is fp32; fp32 if these are computed with as they are.
  Dtype compute_dtype() const { return compute_dtype(Dtype::f32); }
  // In which its gradient is held until the step: its own, where the plan computes in 16 bits and nothing is added to
  // the gradient of one micro-batch, else the accumulation dtype. More backwards than planned widen it.
  Dtype gradient_dtype(Dtype stored) const;
  // Whether it is held as the mean over ranks, not the sum, which 16 bits might not hold.
  bool holds_mean() const { return gradient_dtype(compute_dtype()) != accumulation(compute_dtype()); }
  // In which its gradients travel: their own, where each micro-batch's do, else as they are held; or as chosen.
  Dtype reduction_dtype(Dtype stored) const;
  // For a parameter stored in `dtype`, which is narrower than what it is updated in.
  Remainder remainder(Dtype stored) const;
  // Bytes that the optimizer keeps of a weight's remainder.
  std::int64_t remainder_bytes(Dtype stored) const;

  // The table as it is on a mesh: an axis of one rank shards nothing, and where there is one replica, `shard` is
  // `data`. What is chosen by where the ranks are, by hosts of so many (0: they are all on one).
  [[nodiscard]] Plan on(const MeshShape& mesh, int ranks_per_host = 0) const;

  // Everything that is wrong with the plan on a mesh, one sentence each.
  std::vector<std::string> faults(const MeshShape& mesh) const;
  // Throws ConfigError with all faults at once.
  void validate(const MeshShape& mesh) const;

  bool operator==(const Plan&) const = default;

 private:
  template <class T>
  Plan with(T Plan::*setting, T value) const {
    Plan plan = *this;
    plan.*setting = value;
    return plan;
  }
  bool has_rows_of(const Plan& other) const;

  std::string label_;            // of the preset that it began as
  std::optional<MeshShape> on_;  // where that changed rows
  std::array<Row, kStates> rows_{};
  Precision precision_ = Precision::fp32;
  int accumulate_ = 1;
  bool reproducible_ = false;
  bool delays_update_ = false;
  bool error_feedback_ = false;
  std::int64_t resident_budget_ = 0;
  int overlap_ = 0;
  ActivationBudget activation_budget_;
};

}  // namespace zero

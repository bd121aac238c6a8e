// One unit on this rank: flat memory in which its parameters lie, each in a storage of its own, as a program expects of
// parameters. At rest the memory holds the whole unit (replicated) or there is none (paged: the rank keeps its slice,
// or all, apart, in memory or in a store of another tier); paging exchanges the storages' data pointers, so that views
// saved anywhere, by autograd too, stay valid.
//
// Where ranks share memory, a paged unit of the device's tier is whole in memory that is common to all of them, each
// rank's slice at its place: to page it in moves nothing. A gather scope then works on a copy of its own.
//
// Where the plan keeps what was gathered (Plan::keep_gathered), the first gather since the unit was updated brings what
// is kept, and every one goes on from there. What is kept whole lies in memory that is common to a shard group, where
// there is any: each rank brings its part of what other groups have. Where differences travel, they are from what is
// kept, which is then there for good, and part of the state.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backwards/accounts.h"
#include "base/codec.h"
#include "comm/mesh_groups.h"
#include "device/torch/dtypes.h"
#include "memory/staged_pass.h"
#include "parallel/sharded_tensor.h"
#include "partition/routes.h"
#include "units/tier_loader.h"
#include "zero/layout.h"
#include "zero/plan.h"
#include "zero/tensor_rule.h"

namespace zero {

class Float8Linears;
class MaxNorms;
class MicroBatch;
class Unit;

// The engine, as operators and gather scopes meet it through a unit.
class UnitOwner {
 public:
  virtual ~UnitOwner() = default;
  // Makes units of this engine, at least one, readable together, for an operator that has them as arguments.
  virtual void page_in(std::span<Unit* const> units) = 0;
  virtual MicroBatch& micro_batch() = 0;
  virtual const c10::intrusive_ptr<Float8Linears>& float8() = 0;  // null but under Precision::fp8
  virtual MaxNorms& max_norms() = 0;
  // Whether a scope holds the unit, in which it may be written.
  virtual bool held(const Unit& unit) const = 0;
  // Collective where the unit is gathered. Throws ConfigError when there is no rank `from_rank`.
  virtual void begin_scope(Unit& unit, std::optional<int> from_rank) = 0;
  // Takes what was written to the whole over into shards and main weights; `from_rank`'s copy wins.
  virtual void commit_scope(Unit& unit, std::optional<int> from_rank) = 0;
  virtual void end_scope(Unit& unit) = 0;
  // end_scope() without commit_scope(). `before`: a copy of the whole as it was at begin_scope(), or empty for a paged
  // unit that no other scope holds.
  virtual void rollback_scope(Unit& unit, const Buffer& before) = 0;

  // Expires with the engine.
  std::weak_ptr<const void> life() const { return life_; }

 private:
  std::shared_ptr<const int> life_ = std::make_shared<const int>(0);
};

// How a unit's parameters are cut over a tensor axis.
struct UnitCuts {
  std::shared_ptr<TensorAxis> axis;             // null: they are not
  std::vector<std::optional<TensorCut>> slots;  // none: it is whole on every rank

  bool any() const {
    return std::ranges::any_of(slots, [](const auto& cut) { return cut.has_value(); });
  }
};

// The dimensions of a dense tensor from the slowest to the fastest, those of length 1 left out: what its elements'
// order in memory depends on. Any other tensor is row-major in a unit.
std::vector<std::int64_t> memory_order(const at::Tensor& parameter);

class Unit {
 public:
  // `parameters` in the order of layout.slots(). `loader`: of parameters on another tier than the device; null: they
  // are there. `codes`: for those of every unit, where parameters travel in any. Nothing is taken over yet.
  Unit(const UnitLayout& layout, int index, const Routes& routes, std::vector<at::Tensor> parameters, UnitCuts cuts,
       const Buffer& codes, Accounts& accounts, TierLoader* loader);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  // The unit whose parameter, or a view of it, `tensor` is, or null: no table.
  static Unit* of(const c10::TensorImpl* tensor) {
    const Place* const place = place_of(tensor);
    return place == nullptr ? nullptr : place->unit;
  }

  // The parameters' values as one flat array in the accumulation dtype, gaps zero. Of those that are deferred rank 0
  // has them, the others memory for them; or, `in_part`, each rank has its part at rest alone, read by itself.
  Buffer flatten(bool in_part) const;
  // Of a unit of which this rank has a part at rest, where what is deferred of it comes from elsewhere: the same for
  // the same sources; else 0.
  std::int64_t sources() const;
  // Puts the parameters into the unit's memory, with these values (see flatten). Collective. What they were is kept
  // until settle(), and put back by restore().
  void adopt(Buffer values, Staging& staging);
  void settle();
  void restore();
  // In the place of adopt(), of a unit without elements: its parameters have the unit's dtype, and stay where they are.
  void cast();

  const UnitLayout& layout() const { return layout_; }
  int index() const { return index_; }
  int rank() const { return routes_.rank(); }
  // Whole only while it is used.
  bool paged() const { return routes_.pages(); }
  // And then gathered from other ranks.
  bool gathers() const { return routes_.gathers(); }
  // And then read from another tier.
  bool brings() const { return loader_ != nullptr; }
  // Paged, and in memory that the ranks have in common: those of its shards, or those among which it is kept whole.
  bool common() const { return common_ != nullptr && !routes_.keeps_for_group(layout_.mesh()); }
  bool shared() const { return common_ != nullptr; }
  at::Device device() const { return accounts_.where(); }
  Accounts& accounts() const { return accounts_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // What of a parameter, and of its gradient as autograd brought it, lies in the unit: of those that are cut over a
  // tensor axis this rank's part. Of gradients collective along it.
  at::Tensor own(int slot) const;
  at::Tensor own_gradient(int slot, const at::Tensor& gradient) const;
  at::ScalarType dtype() const { return scalar_type(layout_.dtype()); }
  // The first element of this rank's slice over all.
  std::int64_t slice_begin() const { return layout_.slice(Axis::data, rank()).begin; }

  // Memory for the whole unit on its way in; to be filled from every rank's shard, `exactly` or as operators have it.
  // None where it arrives in what is kept.
  View make_room(bool exactly);
  View room();
  // Begins to bring to that memory what this rank has on another tier; null: there is none.
  std::shared_ptr<TierLoad> bring();
  // What of the unit is at rest here, on the device: this rank's shard, or the whole; and elements [begin, begin +
  // count) of it.
  View shard();
  View shard(const Slice& slice);
  View full();
  // Elements of the flat array, of those that this rank holds at rest, in the block in which they do.
  BlockPart stored(const Slice& elements, Access way = Access::update);
  // The whole has arrived: operators may read it.
  void install();
  // What was written to the resident whole becomes this rank's shard.
  void keep_full(Staging& staging);
  // Its parameters have other values.
  void changed();
  // It is being replaced under the parameters (replicated units, after a step).
  void suspend();
  // Memory for the whole that is not the unit's own.
  Buffer scratch() const { return accounts_.buffer({Owner::gathered, index_}, layout_.length(), dtype()); }
  // The resident whole in memory that is not the unit's own; and its values from there.
  Buffer copy_of_full();
  void write_full(const Buffer& values);
  // Whole in memory of its own, which may be written, until share(); where it is common.
  void privatise();
  void share();
  // Gathers the unit into `whole`, where what this rank has of it on another tier is already, and for other ranks,
  // which alone want it. On the exchange's thread.
  void gather(const MeshGroups& groups, View whole, bool exactly);
  void serve(const MeshGroups& groups, bool exactly);
  // Where the peers' parts are read in place: what a gather would bring.
  const Route& whole_route() const { return exact_use_; }
  // Whether what is gathered for operators is what the shards hold.
  bool gathered_exactly() const { return use_.codec == Wire::native && keep_.codec == Wire::native; }
  // Whether more of it than the shard stays, once gathered, until the shards have new values; and whether the whole
  // does.
  bool keeps() const { return routes_.keeps() && !common(); }
  bool keeps_whole() const { return routes_.keeps_whole(); }
  // They have, on all ranks: what was kept of the old ones is brought again; all of it, where they are others
  // altogether (`rewritten`). While nothing is gathered.
  void outdate(bool rewritten = false) {
    kept_is_new_ = false;
    if (rewritten) has_kept_ = Has::none;
  }
  // Whether differences travel, from a copy that changes with updates, the base. On the exchange's thread, all ranks
  // together: that what there is of it becomes what the shards are, and whether there is any; and that there is none.
  bool sends_differences() const { return differs(keep_.codec) && layout_.trainable(); }
  bool renew_base(const MeshGroups& groups);
  void drop_base();
  // This rank's slice of it. It begins with that, whose values are to be put there, as the copy of an engine that had
  // it; while nothing is gathered.
  BlockPart stored_base(const Slice& elements, Access way);
  void begin_base();
  // Forgets the whole of a paged unit.
  void evict();

  // The parameter of this unit that a tensor is, or a view of.
  const Slot& slot_of(const c10::TensorImpl* tensor) const { return layout_.slots()[place_of(tensor)->slot]; }
  const Slot& slot_of(const at::Tensor& tensor) const { return slot_of(tensor.unsafeGetTensorImpl()); }
  bool frozen(const c10::TensorImpl* tensor) const { return !parameters_[place_of(tensor)->slot].requires_grad(); }
  // Elements of the flat array, in the order of its memory, that a tensor is which lies as the unit's `parameter` does;
  // of one that is cut all ranks' parts. Collective along the tensor axis there.
  at::Tensor part_of(const at::Tensor& flat, const at::Tensor& parameter) const;
  std::string fault(int slot) const;  // empty, or what was done to the parameter behind our back
  // Puts parameters that set_data() or torch::load() gave other memory back into the resident whole, with those values
  // or with its own. Throws StateError, all being back, where values have another shape.
  void take_back(bool with_values);
  bool adopted() const { return adopted_; }
  // Ends the unit: parameters keep values that operators may read as ordinary tensors, if told so, else their shapes
  // only: to read them throws and says what to do.
  void abandon(bool with_values = true);
  // Ends it, when operators may read it or it was cast: parameters get these values of the flat array, or its own where
  // there are none, in the dtypes that they had before the unit.
  // `as_computed`: in the unit's own dtype. Collective along the tensor axis where any is cut.
  void give_back(const at::Tensor& values = {}, bool as_computed = false);
  bool cut() const { return cuts_.any(); }

  UnitOwner* owner = nullptr;

 private:
  // Of a parameter: the context of its storage's data pointer, whose deleter is tag().
  struct Place {
    Unit* unit;
    std::size_t slot;
    at::Tensor parameter;  // as the engine put it there: what is here of it,
    at::Tensor shown;      // and what the program's is, which is the same, unless it is cut
  };
  static void tag(void*) {}
  static const Place* place_of(const c10::TensorImpl* tensor) {
    if (tensor->key_set().has(kBelowKey)) tensor = sharded::values_of(tensor);
    if (!tensor->has_storage()) return nullptr;
    const at::DataPtr& pointer = tensor->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
    return pointer.get_deleter() == &Unit::tag ? static_cast<const Place*>(pointer.get_context()) : nullptr;
  }
  c10::StorageImpl& storage_of(const Place& place) const;
  at::DataPtr pointer_to(Place& place, void* whole) const;
  const std::optional<TensorCut>& cut(std::size_t slot) const { return cuts_.slots[slot]; }
  void flatten_first(std::size_t slot, const at::Tensor& place) const;
  at::Tensor shown(std::size_t slot, const at::Tensor& part) const;
  at::Tensor whole_of(std::size_t slot, const at::Tensor& part) const;
  void make_shard();
  std::shared_ptr<TierLoad> bring_to(Buffer& whole);
  void go(const MeshGroups& groups, const Route& route, ConstView from, View to) const;
  bool keeps_base_whole() const { return differs(keep_.codec) && keeps_whole(); }
  View own_base();
  View kept();
  View bring_kept(const MeshGroups& groups, ConstView shard);
  void bring_in_common(const MeshGroups& groups, ConstView shard);
  // `values`, of the device, are those of all elements; staging is where the tier is computed with.
  void write_shard(Staging& staging, const void* values, Dtype dtype);
  void point_at(void* data);
  void forbid(const char* why);
  void settle_on(const std::vector<at::Tensor>& values);
  void cast_back();
  void end();

  const UnitLayout& layout_;
  int index_;
  const Routes& routes_;
  Shard shard_;
  Route use_, keep_, exact_use_;
  std::vector<at::Tensor> parameters_;
  UnitCuts cuts_;
  const Buffer& codes_;
  Accounts& accounts_;
  TierLoader* loader_;
  std::shared_ptr<void> common_;  // the whole, of all ranks
  Buffer memory_;                 // the whole, of this rank
  Block shard_block_;             // what it has at rest of one that is paged
  Block kept_block_;              // and of one that is kept whole in common its part of the rest
  Buffer kept_;                   // of what was gathered, where the plan keeps any; on the exchange's thread
  enum class Has : std::uint8_t { none, slice, all };
  Has has_kept_ = Has::none;           // of it, with values
  bool kept_is_new_ = false;           // as the shards are
  std::shared_ptr<TierLoad> brought_;  // what was read of it last, in the resident whole
  bool adopted_ = false;
  std::vector<Place> places_;          // by slot; they stay where they are
  std::vector<at::Tensor> before_;     // the parameters, until the engine is built
  std::vector<at::ScalarType> given_;  // their dtypes
  bool ready_ = false;
};

}  // namespace zero

// The engine's parts, in the order in which they are built.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backwards/micro_batch.h"
#include "backwards/running_backward.h"
#include "base/process_of_origin.h"
#include "comm/groups.h"
#include "comm/metered.h"
#include "deferred/deferred_tensors.h"
#include "engine/adapted_source.h"
#include "engine/module_inventory.h"
#include "engine/step_sums.h"
#include "engine/trained_module.h"
#include "engine/vote.h"
#include "gradients/gradients.h"
#include "operators/dispatch.h"
#include "operators/float8_linear.h"
#include "operators/max_norms.h"
#include "partition/state_tensors.h"
#include "partition/tiles.h"
#include "persist/saver.h"
#include "units/exchange.h"
#include "units/pager.h"
#include "update/delayed_update.h"
#include "update/held_state.h"
#include "update/updater.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace zero {

class EngineOptimizer;

class Engine::Impl final : public UnitOwner, public TakesGradients {
 public:
  // Of a plan that is valid.
  Impl(Inventory inventory, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer, Options options);
  ~Impl() override;

  // Ends an engine: at once, or when the backward that it is part of has ended.
  static void end(std::unique_ptr<Impl> engine);
  std::shared_ptr<RunningBackward> new_backward();
  void backward(const std::shared_ptr<RunningBackward>& run, const at::Tensor& loss);
  at::Tensor scale(const at::Tensor& loss);
  StepReport step();
  const StepReport& last_step() const { return last_step_; }
  EngineOptimizer& optimizer();
  [[noreturn]] void refuse_optimizer(const std::string& wanted) const;
  void set_lr(double lr);
  std::int64_t next_micro_batch();
  void discard();
  void release(ReleaseAs as);
  at::Tensor main_parameter(const at::Tensor& parameter);
  at::Tensor gradient(const at::Tensor& parameter);
  void for_each_gradient_slice(const std::function<void(const GradientSlice&)>& use);
  EngineState state(bool frozen = true);
  void load_state(StateSource& source);
  void request(std::uint32_t bits) { requests_ |= bits; }
  std::string save(const std::string& folder, const SaveOptions& options);
  std::string finish_save();
  Restored load(const std::string& folder, const LoadOptions& options);

  void page_in(std::span<Unit* const> units) override { pager_->touch(units); }
  MicroBatch& micro_batch() override { return micro_batch_; }
  const c10::intrusive_ptr<Float8Linears>& float8() override { return float8_; }
  MaxNorms& max_norms() override { return max_norms_; }
  bool held(const Unit& unit) const override { return pager_->pinned(unit); }
  void hold(Unit& unit, std::optional<int> from_rank) override;
  void keep(Unit& unit, std::optional<int> from_rank) override;
  void let_go(Unit& unit) override;
  void drop(Unit& unit, const Buffer& before) override;

  const Plan& plan() const { return plan_; }
  bool of_this_process() const { return origin_.here(); }
  const Layout& layout() const { return layout_; }
  const std::vector<ParameterRule>& rules() const { return rules_; }
  Estimate estimate() const;
  Memory memory() const {
    return !accounts_.device().is_host() ? Memory::device : common() ? Memory::common : Memory::separate;
  }
  std::optional<Trace> trace() const { return micro_batch_.trace(); }
  Accounts& accounts() { return accounts_; }
  const Ledger& building() const { return building_; }
  void observe(const std::weak_ptr<EngineObserver>& observer);
  const std::weak_ptr<EngineObserver>& observer() const { return observer_; }
  // The meter, when nothing is on its way.
  TrafficMeter& meter();
  // Likewise between the device, its host and disks.
  TierMeter& tiers();
  Traffic setup_traffic() const { return setup_meter_->snapshot(); }
  std::int64_t steps() const { return steps_; }
  std::int64_t skipped_steps() const { return skipped_; }
  double loss_scale() const { return scaler_.value(); }

 private:
  std::vector<std::string> description_of(const Inventory& inventory) const;
  Exchange::Lanes lanes(const std::shared_ptr<TrafficMeter>& meter) const;
  Communicator setup_group() const;
  void agree(const Inventory& inventory) const;
  std::uint64_t seed() const;
  c10::intrusive_ptr<Float8Linears> float8_linears() const;
  void check_float8() const;
  std::vector<deferred_tensors::Settling> adopt_units(const Inventory& inventory);
  at::Tensor copy_of(const at::Tensor& tensor) const;
  void broadcast(const at::Tensor& values, int unit);
  Buffer values_of(const Unit& unit, bool in_part);
  void reserve_room(const Estimate& needed) const;
  OutOfMemoryError out_of_memory(const std::string& what, const char* during) const;
  std::int64_t needs(const Plan& plan) const;
  std::string plan_that_fits(std::int64_t room) const;
  static at::Tensor wide(const at::Tensor& loss);
  void before_backward() override;
  void after_backward() noexcept override;
  bool joins_others() const override { return options_.outside == OutsideGradients::add; }
  bool launched() const override { return gradients_ && gradients_->launched(); }
  void require_not_ended() const override;
  void end_gradients() override;
  void end_micro_batch(const at::Tensor& loss) override;
  void drop_step() override;
  void drop_arrived() override {
    if (gradients_ && !in_backward_) gradients_->drop_arrived();
  }
  void heed_emptied();
  void agree_on_emptied();
  void settle_emptied();
  bool any_left();
  void begin_anew();
  void empty_step();
  int slot() const;
  int taken() const;
  std::int64_t number_of(int slot) const;
  void number_forward();
  void number_from(int first);
  void check_idle(const char* call) const;
  Unit& unit_of(const at::Tensor& parameter, const char* call) const;
  View updated_of(const Unit& unit, const at::Tensor& whole) const;
  void gather_updated(const Unit& unit, const at::Tensor& whole);
  void check_gradients(const char* call);
  void each_gradient_slice(Unit& unit, const std::function<void(const Slot&, GradientSlice)>& use) const;
  void begin_micro_batch();
  void join_backward();
  StepReport attempt();
  void heed_groups();
  void follow_groups();
  std::optional<double> ratio_of(const ParameterRule& rule) const;
  int group_of(const ParameterInfo& info) const;
  std::vector<at::Tensor> whole_weights();
  double factor_on_rates() const;
  void check_alive() const;
  void check_parameters() const;
  void check_module();
  void look_at_buffers();
  void check_not_gathered(const char* call) const;
  std::string rank_text() const { return "rank " + std::to_string(exchange_.rank()); }
  void check_between_steps(const char* call);
  void require_no_gradients(const char* call) const;
  StateScalars scalars() const;
  ElementOrder order_of(int parameter) const;
  ElementOrder order_of(const StateTensor& tensor, int parameter) const;
  std::vector<ExpectedParameter> expected_state() const;
  ExpectedBuffers buffers_of_state() const;
  void agree_on_buffers(const std::vector<StateTensor>& buffers);
  void each_parameter(Unit& unit, const TellState& tell) const;
  void each_state(Unit& unit, const TellState& tell) const;
  void settle_parameters();
  StateFit agree_on_state(const StateSource& source);
  class Loading;
  void exchange_files(Exchange::Kind kind, const std::function<void(const Communicator& all)>& work);
  void make_way(WhileSaving how);
  SaveOrder order(const std::string& folder, const SaveOptions& options);
  std::string copy(Snapshot& snapshot);
  void report_save(bool ended, StepReport& report);
  void resume(const StateScalars& scalars);
  void take_over(StateSource& source);
  Restored load_one(const std::string& place, const LoadOptions& options);
  struct LoadFault {
    std::string text = {};
    bool damaged = false;  // what was read, and no other failure
  };
  void agree_on_loading(const LoadFault& fault);
  StepSummary summary();
  std::uint32_t rates() const;
  void require_same_rates(const StepDecision& decision) const;
  StepDecision vote();
  StepDecision timed_vote(StepReport& report);
  std::vector<std::int64_t> squares_of_groups();
  std::vector<double> group_norms();
  double micro_batches() const;  // of a step, on all ranks
  double held_times() const;
  double scale_of(const StepDecision& decision) const;
  UnitStep next_step(Unit& unit, const StepDecision& decision, double lr_factor);
  double update(const StepDecision& decision, double lr_factor);
  void updated(Unit& unit);
  double begin_delayed(const StepDecision& decision, double lr_factor);
  void delay_updates();
  void take_over_delayed();
  void take_over_in_step();
  void before_evaluation();
  void catch_up(const char* call);
  void meet_before_taking_over();
  std::vector<Unit*> in_order_of_updates() const;
  void renormalise();
  const at::Tensor& parameter_at(int index) const;
  void publish(Unit& unit, Exchange::Kind kind);
  bool common() const;
  void renew(Exchange::Kind kind);
  void meet(const Unit& unit);
  std::function<void(const Groups&)> barrier() const;
  void start_window();

  Plan plan_;      // as given
  Plan resolved_;  // on the mesh
  Options options_;
  std::shared_ptr<const int> seat_;  // among the world's engines
  Optimizer optimizer_given_;        // to parameters in no group
  double lr_;                        // of these
  std::vector<ParameterInfo> infos_;
  std::vector<ParameterRule> rules_;  // by parameter
  TrainedModule module_;
  std::vector<Replicated> replicated_;  // as they were when they were looked at last
  Tiles tiles_;
  Layout layout_;
  std::shared_ptr<TrafficMeter> meter_;        // of steps
  std::shared_ptr<TrafficMeter> setup_meter_;  // of everything else
  Groups groups_;                              // not metered, as the next
  std::uint64_t seed_;
  Accounts accounts_;
  Groups data_groups_;  // for what is where the engine computes
  GatherWire wire_;
  std::unique_ptr<Bringer> bringer_;  // of parameters on another tier than the device; null: they are there
  std::vector<std::unique_ptr<Unit>> units_;
  Exchange exchange_;
  StepSums sums_;                             // of this rank
  c10::intrusive_ptr<Float8Linears> float8_;  // null but under Precision::fp8
  std::vector<char> staying_;                 // by unit: see partition/staying.h
  UnitStores gradient_stores_;
  Updater updater_;
  LossScaler scaler_;
  MaxNorms max_norms_;
  MicroBatch micro_batch_;
  Ledger building_;  // when it was built
  std::unique_ptr<Pager> pager_;
  std::unique_ptr<Gradients> gradients_;
  int micro_ = 0;
  // Micro-batches' numbers in the step, by `slot`: which one it begins with, and which one has been told or computed
  // with since the latest backward.
  int first_slot_ = 0;
  std::optional<int> given_slot_;
  bool partly_emptied_ = false;  // what is left of the step is to be agreed on
  bool in_backward_ = false;
  bool ended_ = false;  // within a backward
  int stepped_ = 0;     // of them, so many before the latest step() that did nothing
  StepReport last_step_ = {};
  std::unique_ptr<EngineOptimizer> optimizer_;  // null before it is asked for
  std::optional<HearsOfBackwards> hears_{std::in_place, *this};
  std::optional<Watch> watch_;  // while the module is the engine's
  std::int64_t consumed_ = 0;   // micro-batches of all ranks, in the steps tried: applied, or skipped for overflow
  std::int64_t steps_ = 0;
  std::int64_t skipped_ = 0;
  std::uint32_t requests_ = 0;    // since the last vote
  Block snapshot_;                // kept from one save in the background to the next
  std::unique_ptr<Saver> saver_;  // null before the first of them
  // The checkpoint that it goes on from: rank 0's. The Saver's while a save is under way.
  std::shared_ptr<std::optional<Origin>> behind_ = std::make_shared<std::optional<Origin>>();
  std::weak_ptr<EngineObserver> observer_;
  bool released_ = false;
  ProcessOfOrigin origin_;
  const char* broken_ = nullptr;            // what failed halfway
  std::shared_ptr<const int> told_;         // expires when what state() has told of is no longer so
  std::unique_ptr<DelayedUpdate> delayed_;  // null but under Plan::delay_update()
};

}  // namespace zero

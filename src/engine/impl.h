// An engine: its parts, in the order in which they are built, each of which knows those before it.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "engine/accumulation.h"
#include "engine/engine_entry.h"
#include "engine/engine_ranks.h"
#include "engine/engine_saving.h"
#include "engine/module_inventory.h"
#include "engine/parameters.h"
#include "engine/step.h"
#include "engine/trained.h"
#include "operators/dispatch.h"
#include "units/unit.h"
#include "zero/engine.h"

namespace zero {

class Engine::Impl final : public UnitOwner {
 public:
  // Of a plan that is valid.
  Impl(const Inventory& inventory, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer, Options options);
  ~Impl() override;

  // Ends an engine: at once, or when the backward that it is part of has ended.
  static void end(std::unique_ptr<Impl> engine);

  StepReport take_step();
  // The program's; its step() is the engine's.
  EngineOptimizer& optimizer();
  void release(ReleaseAs as);
  void observe(const std::weak_ptr<EngineObserver>& observer);
  // What steps have moved between tiers, when nothing is on its way.
  TierMeter& tiers();

  void page_in(std::span<Unit* const> units) override { parameters.pager().acquire(units); }
  MicroBatch& micro_batch() override { return parameters.micro_batch(); }
  const c10::intrusive_ptr<Float8Linears>& float8() override { return accumulation.float8(); }
  MaxNorms& max_norms() override { return parameters.max_norms(); }
  bool held(const Unit& unit) const override { return parameters.pager().pinned(unit); }
  void begin_scope(Unit& unit, std::optional<int> from_rank) override;
  void commit_scope(Unit& unit, std::optional<int> from_rank) override;
  void end_scope(Unit& unit) override { parameters.pager().unpin(unit); }
  void rollback_scope(Unit& unit, const Buffer& before) override;

  Liveness life;
  Trained trained;
  EngineRanks ranks;
  Parameters parameters;
  Accumulation accumulation;
  Step step;
  Entry entry;
  Saving saving;

 private:
  std::weak_ptr<EngineObserver> observer_;
  std::optional<Watch> watch_;  // while the module is the engine's
};

}  // namespace zero

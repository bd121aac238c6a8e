#include "engine/impl.h"

#include "backwards/paged_activations.h"
#include "backwards/program_backward.h"
#include "operators/parameters_again.h"
#include "zero/error.h"

namespace zero {

Engine::Impl::Impl(const Inventory& inventory, const Mesh& mesh, const Plan& plan, const Optimizer& optimizer,
                   Options options)
    : trained(inventory, mesh.data(), plan, optimizer, std::move(options)),
      ranks(trained, inventory, mesh),
      parameters(trained, ranks, life, inventory, *this),
      accumulation(trained, ranks, life, parameters),
      step(trained, ranks, life, parameters, accumulation),
      entry(trained, ranks, life, parameters, accumulation, step),
      saving(trained, ranks, life, parameters, accumulation, step, entry, inventory.replicated) {
  parameters.settle();
  if (plan.activation_budget()) {
    micro_batch().activations().limit(plan, std::make_unique<UnitsAgain>(*this));
    if (micro_batch().accounts().device().is_host()) Exchange::in_any_order();  // see UnitsAgain::units
  }
  watch_.emplace();
  program_backward::watch();
}

// It hears and sees nothing more before its parts end.
Engine::Impl::~Impl() {
  accumulation.stop_hearing();
  watch_.reset();
  parameters.end();
}

void Engine::Impl::end(std::unique_ptr<Impl> engine) {
  if (!RunningBackward::concerns(engine->accumulation) && !engine->micro_batch().in_backward()) return;
  RunningBackward* const running = RunningBackward::outermost();
  if (running == nullptr) return;
  engine->accumulation.end_with_backward();
  running->keep(std::move(engine));
}

StepReport Engine::Impl::take_step() {
  return entry("step()", {.module = true, .idle = true}, [&] {
    const ActivityScope acting(observer_, Activity::step);
    bool save_ended = saving.save_ended();
    StepReport report = ranks.accounts().explaining_memory("step()", [&] { return step.take(save_ended); });
    if (save_ended) saving.report_save(report);
    return report;
  });
}

EngineOptimizer& Engine::Impl::optimizer() {
  return entry("optimizer()", {}, [&]() -> EngineOptimizer& { return step.optimizer([this] { take_step(); }); });
}

void Engine::Impl::release(ReleaseAs as) {
  entry("release()", {.module = true, .idle = true, .no_scope = true, .latest = true}, [&] {
    micro_batch().activations().settle();
    parameters.release(as, [&] { accumulation.release(); });
    watch_.reset();
    life.release();
  });
}

void Engine::Impl::observe(const std::weak_ptr<EngineObserver>& observer) {
  if (const auto now = observer.lock()) now->begins(ranks.accounts().where());
  observer_ = observer;
  ranks.exchange().observe(observer);
  parameters.observe(observer);
  ranks.accounts().observe(observer);
}

TierMeter& Engine::Impl::tiers() {
  if (DelayedUpdate* const delayed = parameters.delayed()) delayed->settle();
  return ranks.accounts().tiers();
}

void Engine::Impl::begin_scope(Unit& unit, std::optional<int> from_rank) {
  entry("zero::gather", {.apart = true}, [&] {
    parameters.invalidate_state();
    if (from_rank && (*from_rank < 0 || *from_rank >= ranks.all_ranks()))
      throw ConfigError("zero::gather: there is no rank " + std::to_string(*from_rank) + " among " +
                        std::to_string(ranks.all_ranks()));
    ranks.accounts().explaining_memory("gathering parameters", [&] {
      step.finish_delayed_update("zero::gather");
      if (!parameters.pager().pinned(unit)) parameters.renormalise();
      parameters.pager().pin(unit);
    });
  });
}

void Engine::Impl::commit_scope(Unit& unit, std::optional<int> from_rank) {
  naming_rank(ranks.rank_of_all(), [&] {
    micro_batch().activations().settle();
    parameters.keep(unit, from_rank);
  });
}

// Other ranks may commit theirs, and wait for this one as Parameters::keep() does.
void Engine::Impl::rollback_scope(Unit& unit, const Buffer& before) {
  unit.take_back(false);
  if (before) unit.write_full(before);
  end_scope(unit);
  Pager& pager = parameters.pager();
  if (!before && !pager.pinned(unit)) pager.drop(unit);
  pager.outdate_together(unit, /*rewritten=*/true);
  pager.meet_in_common(unit);
  pager.meet_in_common(unit);
}

void Entry::require(const char* call, const Needs& needs) const {
  if (needs.alive) life_.require();
  if (needs.module) trained_.require_module();
  if (needs.idle || needs.between_steps) accumulation_.require_idle(call);
  if (needs.unchanged) parameters_.require_unchanged();
  if (needs.no_scope) parameters_.require_no_scope(call);
  if (needs.between_steps) {
    accumulation_.settle_emptied();
    accumulation_.require_no_gradients(call);
  }
  if (!needs.latest) return;
  step_.finish_delayed_update(call);
  parameters_.renormalise();
}

}  // namespace zero

// Makes a scenario that fails smaller, as long as it fails in the same way.
#include <algorithm>
#include <chrono>
#include <functional>

#include "ranks/scenario/course.h"
#include "ranks/scenario/judge.h"

namespace zero::test::scenario {
namespace {

class Shrinker {
 public:
  Shrinker(Scenario failing, Verdict& verdict) : least_(std::move(failing)), verdict_(verdict) {}

  Scenario run() {
    for (bool smaller = true; smaller && tries_ > 0;) {
      const Scenario before = least_;
      drop_events();
      drop_blocks();
      simplify_settings();
      simplify_plans();
      simplify_events();
      smaller = !(before == least_);
    }
    return least_;
  }

 private:
  bool attempt(Scenario smaller) {
    keep_permitted(smaller);
    if (tries_ <= 0 || smaller == least_) return false;
    --tries_;
    Verdict verdict = judge(smaller, std::chrono::seconds(10));
    if (verdict.kind != verdict_.kind) return false;
    verdict_ = std::move(verdict);
    least_ = std::move(smaller);
    return true;
  }

  // Many at once first. From the end: what is before stays what it was.
  template <class List>
  void drop_from(List Scenario::*list, std::size_t keep) {
    for (std::size_t count = (least_.*list).size(); count > 0; count /= 2)
      for (std::size_t end = (least_.*list).size(); end >= count && end > 0;) {
        Scenario smaller = least_;
        List& all = smaller.*list;
        const auto last = all.begin() + static_cast<std::ptrdiff_t>(end);
        all.erase(last - static_cast<std::ptrdiff_t>(count), last);
        if (all.size() < keep || !attempt(std::move(smaller))) --end;
        end = std::min(end, (least_.*list).size());
      }
  }

  void drop_events() { drop_from(&Scenario::events, 0); }
  void drop_blocks() { drop_from(&Scenario::blocks, 0); }

  template <class Key>
  void simplify(const std::function<Choices<Key>&(Scenario&)>& of) {
    for (std::size_t i = 0; i < Choices<Key>::kCount; ++i)
      for (int simpler = 0; simpler < of(least_)[static_cast<Key>(i)]; ++simpler) {
        Scenario smaller = least_;
        of(smaller)[static_cast<Key>(i)] = simpler;
        if (attempt(std::move(smaller))) break;
      }
  }

  void simplify_settings() {
    simplify<Setting>([](Scenario& scenario) -> Choices<Setting>& { return scenario.settings; });
  }

  void simplify_plans() {
    while (least_.plans.size() > 1) {
      Scenario smaller = least_;
      smaller.plans.pop_back();
      if (!attempt(std::move(smaller))) break;
    }
    for (std::size_t plan = 0; plan < least_.plans.size(); ++plan)
      simplify<PlanChoice>([plan](Scenario& scenario) -> Choices<PlanChoice>& { return scenario.plans[plan]; });
  }

  void simplify_events() {
    for (std::size_t i = 0; i < least_.events.size(); ++i) {
      for (int Event::*const number : {&Event::which, &Event::how, &Event::part})
        change(i, [&](Event& event) { event.*number = 0; });
      for (unsigned Event::*const ranks : {&Event::some, &Event::infinite})
        change(i, [&](Event& event) { event.*ranks = 0; });
    }
  }

  void change(std::size_t event, const std::function<void(Event&)>& to) {
    if (event >= least_.events.size()) return;
    Scenario smaller = least_;
    to(smaller.events[event]);
    attempt(std::move(smaller));
  }

  Scenario least_;
  Verdict& verdict_;
  int tries_ = 400;
};

}  // namespace

Scenario shrink(Scenario failing, Verdict& verdict) {
  return Shrinker(std::move(failing), verdict).run();
}

}  // namespace zero::test::scenario

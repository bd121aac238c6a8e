// A scenario from a seed, and in words.
#include <algorithm>

#include "base/random.h"
#include "ranks/scenario/course.h"
#include "ranks/scenario/network.h"
#include "ranks/scenario/scenario.h"
#include "ranks/scenario/settings.h"

namespace zero::test::scenario {
namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  int below(int count) { return static_cast<int>(derived(seed_, drawn_++) % static_cast<std::uint64_t>(count)); }
  bool of_100(int times) { return below(100) < times; }

 private:
  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
};

template <class Key>
Choices<Key> drawn_choices(Dice& dice) {
  Choices<Key> choices;
  const std::vector<Field>& table = fields<Key>();
  for (std::size_t i = 0; i < table.size(); ++i) {
    const int others = static_cast<int>(table[i].options.size()) - 1;
    choices[static_cast<Key>(i)] = dice.of_100(table[i].usual) ? 0 : 1 + dice.below(others);
  }
  return choices;
}

unsigned drawn_ranks(Dice& dice) {
  return static_cast<unsigned>(1 + dice.below(15));
}

const ActRow& row_of(const Event& event) {
  return act_rows()[static_cast<std::size_t>(event.act)];
}

Event drawn_event(Dice& dice, Act act, int parts) {
  Event event{.act = act};
  const ActRow& row = row_of(event);
  if (!row.which.empty() && dice.of_100(60)) event.which = dice.below(static_cast<int>(row.which.size()));
  if (!row.how.empty() && dice.of_100(60)) event.how = dice.below(static_cast<int>(row.how.size()));
  if (row.part && dice.of_100(60)) event.part = dice.below(parts);
  if (!row.some.empty() && dice.of_100(20)) event.some = drawn_ranks(dice);
  if (!row.infinite.empty() && dice.of_100(7)) event.infinite = drawn_ranks(dice);
  return event;
}

Act any_act(Dice& dice) {
  int total = 0;
  for (const ActRow& row : act_rows()) total += row.weight;
  int left = dice.below(total);
  std::size_t act = 0;
  while ((left -= act_rows()[act].weight) >= 0) ++act;
  return static_cast<Act>(act);
}

std::vector<Event> drawn_events(Dice& dice, int accumulate, int parts) {
  std::vector<Event> events;
  const auto others = [&] {
    while (dice.of_100(35)) events.push_back(drawn_event(dice, any_act(dice), parts));
  };
  const int steps = 2 + dice.below(4);
  for (int step = 0; step < steps; ++step) {
    for (int micro = 0; micro < accumulate; ++micro) {
      others();
      events.push_back(drawn_event(dice, Act::backward, parts));
    }
    others();
    events.push_back(drawn_event(dice, Act::step, parts));
  }
  others();
  return events;
}

bool works(const Scenario& scenario) {
  for (int plan = 0; plan < static_cast<int>(scenario.plans.size()); ++plan)
    if (!plan_of(scenario, plan).faults(mesh_of(scenario, plan)).empty()) return false;
  return true;
}

std::string ranks_in_words(unsigned ranks) {
  std::string text;
  for (int rank = 0; rank < 4; ++rank)
    if (has(ranks, rank)) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

template <class Key>
std::string in_words(const Choices<Key>& choices) {
  std::string text;
  const std::vector<Field>& table = fields<Key>();
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto chosen = static_cast<std::size_t>(choices[static_cast<Key>(i)]);
    if (chosen > 0 || i == 0) text += (text.empty() ? "" : "; ") + table[i].name + ": " + table[i].options[chosen];
  }
  return text;
}

}  // namespace

bool has(unsigned ranks, int rank) {
  return (ranks >> rank & 1U) != 0;
}

Scenario draw(std::uint64_t seed, int& refused) {
  Dice dice(seed);
  Scenario scenario{.seed = seed};
  for (bool first = true;; first = false) {
    refused += first ? 0 : 1;
    scenario.settings = drawn_choices<Setting>(dice);
    if (delays(scenario)) scenario.settings[Setting::optimizer] %= 16;  // those that go element by element
    scenario.plans.clear();
    for (int plan = 0; plan < 3; ++plan) {
      scenario.plans.push_back(drawn_choices<PlanChoice>(dice));
      if (delays(scenario)) scenario.plans.back()[PlanChoice::optimizer] = 1;
    }
    if (works(scenario)) break;
  }
  const int blocks = 1 + dice.below(5);
  for (int i = 0; i < blocks; ++i) scenario.blocks.push_back(dice.below(static_cast<int>(block_rows().size())));
  const int parts = make_network(scenario, 0)->parts();
  scenario.events = drawn_events(dice, accumulate_of(scenario), parts);
  keep_permitted(scenario);
  return scenario;
}

std::string print(const Scenario& scenario, const Event& event) {
  const ActRow& row = row_of(event);
  std::string text = row.name;
  if (!row.which.empty()) text += " " + row.which[static_cast<std::size_t>(event.which)];
  if (!row.how.empty()) text += ", " + row.how[static_cast<std::size_t>(event.how)];
  if (row.part) {
    const auto part = make_network(scenario, 0)->part(event.part);
    text += event.part == 0 ? ": all parameters" : ":";
    for (std::size_t i = 0; i < part.size() && event.part > 0; ++i) text += " " + part[i].first;
  }
  const unsigned all = (1U << ranks_of(scenario)) - 1;
  if ((event.some & all) != 0) text += "; " + row.some + " on ranks " + ranks_in_words(event.some & all);
  if ((event.infinite & all) != 0) text += "; " + row.infinite + " on ranks " + ranks_in_words(event.infinite & all);
  return text;
}

std::string print(const Scenario& scenario) {
  std::string text = "  " + in_words(scenario.settings) + "\n  blocks:";
  for (const int block : scenario.blocks) text += " [" + block_rows()[static_cast<std::size_t>(block)].name + "]";
  for (std::size_t i = 0; i < scenario.plans.size(); ++i)
    text += "\n  plan " + std::to_string(i + 1) + ": " + in_words(scenario.plans[i]);
  for (std::size_t i = 0; i < scenario.events.size(); ++i)
    text += "\n  " + std::to_string(i + 1) + ". " + print(scenario, scenario.events[i]);
  return text + "\n";
}

}  // namespace zero::test::scenario

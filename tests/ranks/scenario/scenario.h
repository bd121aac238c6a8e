// A training drawn at random, as a value: what is trained, by what, and what happens. Tables say what there is to
// choose from. Who draws, prints or simplifies a scenario knows nothing but the tables, so a new option is a row here
// and a line where it is carried out: settings.cpp, network.cpp, engine_course.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace zero::test::scenario {

// Something to choose.
struct Field {
  std::string name;
  std::vector<std::string> options;  // the first is the simplest
  int usual;                         // of 100 drawn, so many are the first
};

// What all ranks have in common for the whole run.
enum class Setting : std::uint8_t {
  ranks,
  precision,
  accumulate,
  reproducible,
  delay,
  optimizer,
  groups,
  clip,
  schedule,
  loss_scale,
  full_precision,
  reduce_in,
  units,
  group_norms,
  float8_scales,
  checks,
  width,
  count
};

// What another engine of the same run may have otherwise.
enum class PlanChoice : std::uint8_t {
  preset,
  shard,
  optimizer,
  gradient,
  parameter,
  wire,
  kept,
  budget,
  overlap,
  count
};

template <class Key>
class Choices {
 public:
  static constexpr std::size_t kCount = static_cast<std::size_t>(Key::count);
  int operator[](Key key) const { return chosen_[static_cast<std::size_t>(key)]; }
  int& operator[](Key key) { return chosen_[static_cast<std::size_t>(key)]; }
  bool operator==(const Choices&) const = default;

 private:
  std::array<int, kCount> chosen_{};
};

// In the order of the keys.
template <class Key>
const std::vector<Field>& fields();
template <>
const std::vector<Field>& fields<Setting>();
template <>
const std::vector<Field>& fields<PlanChoice>();

// What there is in a network, one after the other: rows of network.cpp.
using Blocks = std::vector<int>;

enum class Act : std::uint8_t {
  backward,
  step,
  zero_grad,
  discard,
  forward,
  evaluate,
  freeze,
  thaw,
  read,
  write,
  gradient,
  clamp,
  set_lr,
  request,
  save,
  load,
  move,
  release,
  count
};

// What an event can say.
struct ActRow {
  std::string name;
  std::vector<std::string> which = {};  // of what; none: nothing to choose
  std::vector<std::string> how = {};
  bool part = false;          // of the parameters
  std::string some = {};      // what some ranks do otherwise
  std::string infinite = {};  // and others
  int weight = 0;             // how often it happens between and within steps
};
const std::vector<ActRow>& act_rows();

struct Event {
  Act act = Act::step;
  int which = 0;
  int how = 0;
  int part = 0;                     // 0: all parameters; from 1 on those of a block, then one parameter
  unsigned some = 0, infinite = 0;  // sets of ranks
  bool operator==(const Event&) const = default;
};

struct Scenario {
  std::uint64_t seed = 0;
  Blocks blocks = {};
  Choices<Setting> settings = {};
  std::vector<Choices<PlanChoice>> plans = {};  // the first is that of the first engine
  std::vector<Event> events = {};
  bool operator==(const Scenario&) const = default;
};

int ranks_of(const Scenario& scenario);
int accumulate_of(const Scenario& scenario);
bool has(unsigned ranks, int rank);

// The same for a seed, whatever the machine. `refused` counts plans that were drawn and cannot be.
Scenario draw(std::uint64_t seed, int& refused);
// For people.
std::string print(const Scenario& scenario);
std::string print(const Scenario& scenario, const Event& event);

}  // namespace zero::test::scenario

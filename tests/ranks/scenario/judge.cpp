#include "ranks/scenario/judge.h"

#include <malloc.h>

#include <exception>
#include <mutex>
#include <typeinfo>

#include "folder.h"
#include "memory/torch/arena_allocator.h"
#include "ranks/harness.h"
#include "ranks/scenario/engine_course.h"
#include "ranks/scenario/log.h"
#include "ranks/scenario/plain_course.h"
#include "ranks/scenario/settings.h"

namespace zero::test::scenario {
namespace {

// New memory, as long as this lives: that nobody has written it shows where another run's is another.
class Filled {
 public:
  explicit Filled(unsigned char byte) {
    mallopt(M_PERTURB, byte);
    fill_new_memory(byte);
  }
  ~Filled() {
    mallopt(M_PERTURB, 0);
    fill_new_memory({});
  }
  Filled(const Filled&) = delete;
  Filled& operator=(const Filled&) = delete;
};

struct Run {
  std::vector<Log> logs;  // by rank
  std::string error = {};
  bool refused = false;
};

Run run(const Scenario& scenario, unsigned char fill, std::chrono::milliseconds limit) {
  const Filled filled(fill);
  const Folder folder;
  const auto ranks = static_cast<std::size_t>(ranks_of(scenario));
  Run result{std::vector<Log>(ranks)};
  std::mutex mutex;
  const auto note = [&](int rank, const std::string& text, bool refused) {
    const std::lock_guard lock(mutex);
    if (result.error.empty()) {
      result.error = "rank " + std::to_string(rank) + ", " + text;
      result.refused = refused;
    }
  };
  const auto each = [&](const World& world) {
    Log& log = result.logs[static_cast<std::size_t>(world.rank())];
    EngineCourse course(scenario, world, folder.path(), log);
    try {
      course.run();
    } catch (const std::exception& error) {
      const bool refused = course.building() && dynamic_cast<const ConfigError*>(&error) != nullptr;
      note(world.rank(), "event " + std::to_string(log.event()) + ": " + error.what(), refused);
      throw;
    }
  };
  try {
    run_ranks(static_cast<int>(ranks), each, limit);
  } catch (const RankError& error) {
    note(-1, error.what(), false);
  }
  return result;
}

std::string plans_in_words(const Scenario& scenario) {
  return plan_of(scenario, 0).label();
}

Verdict compared_with(const Reference& reference, const Run& tested, std::chrono::milliseconds limit) {
  const std::string under = "under " + plans_in_words(reference.scenario);
  const Run expected = run(reference.scenario, 0xC3, limit);
  if (!expected.error.empty()) return {Verdict::Kind::error, under + ": " + expected.error};
  if (reference.other_order) {
    const std::string text = difference_in_other_order(tested.logs, expected.logs);
    return text.empty() ? Verdict{} : Verdict{Verdict::Kind::bits, "other bits than " + under + ": " + text};
  }
  for (std::size_t rank = 0; rank < tested.logs.size(); ++rank)
    if (const std::string text = difference(tested.logs[rank], expected.logs[rank]); !text.empty())
      return {Verdict::Kind::bits, "other bits than " + under + " on rank " + std::to_string(rank) + ": " + text};
  return {};
}

// As far as plain LibTorch itself tells: not where it comes to something else once each weight is rounded, as trainings
// do that run away.
Verdict compared_with_plain(const Scenario& scenario, const Run& tested) {
  const double tolerance = plain_tolerance(scenario);
  Log plain, shaken;
  PlainCourse(scenario, tested.logs.front(), plain).run();
  PlainCourse(scenario, tested.logs.front(), shaken, /*shaken=*/true).run();
  const int end = first_apart(plain, shaken, tolerance / 4);
  for (const Log& log : tested.logs)
    if (const std::string text = difference(log, plain, tolerance, end); !text.empty())
      return {Verdict::Kind::plain, "other than plain LibTorch: " + text};
  return {};
}

}  // namespace

Verdict judge(const Scenario& scenario, std::chrono::milliseconds limit) {
  const Run tested = run(scenario, 0x5A, limit);
  if (tested.refused) return {Verdict::Kind::refused, tested.error};
  if (!tested.error.empty()) return {Verdict::Kind::error, tested.error};
  if (const std::string text = difference_between_ranks(tested.logs); !text.empty())
    return {Verdict::Kind::ranks, "ranks differ: " + text};
  const Reference reference = reference_of(scenario);
  if (const Verdict verdict = compared_with(reference, tested, limit); verdict.failed()) return verdict;
  return has_plain(scenario) ? compared_with_plain(scenario, tested) : Verdict{};
}

}  // namespace zero::test::scenario

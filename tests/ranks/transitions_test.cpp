// What the engine does to each unit in a step is what the list of transitions says.
#include "partition/transitions.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <tuple>

#include "backwards/observer.h"
#include "covering.h"
#include "harness.h"
#include "lm.h"

namespace zero::test::transitions_test {

using Done = std::map<std::pair<std::string, int>, int>;  // how often, by activity and unit

// Of the activities that move a unit.
class Log : public EngineObserver {
 public:
  void booked(Owner, int, std::int64_t) override {}
  void adopted(const void*) override {}
  int began(Activity activity, int unit) override {
    const std::lock_guard lock(mutex_);
    if (activity == Activity::gather || activity == Activity::reduce || activity == Activity::publish)
      if (unit >= 0) ++done_[{std::string(name(activity)), unit}];
    return 0;
  }
  void ended(int) noexcept override {}
  Done done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  mutable std::mutex mutex_;
  Done done_;
};

const char* activity_of(Moment moment) {
  if (moment == Moment::use) return "gather";
  return moment == Moment::update ? "publish" : "reduce";
}

// How often a unit is gathered depends on what stays resident: that it is.
Done listed(const Plan& plan, const Layout& layout) {
  Done done;
  for (const Transition& each : transitions(plan.on(layout.mesh()), layout)) {
    const int times = each.when == Moment::gradient ? plan.accumulate() : 1;
    if (!each.joined) done[{activity_of(each.when), each.unit}] += times;
  }
  return done;
}

Done with_gathers_once(Done done) {
  for (auto& [what, times] : done)
    if (what.first == "gather") times = 1;
  return done;
}

// Ranks and those of a shard group (0: all), micro-batches a step, precision, plan.
class Executed : public testing::TestWithParam<std::tuple<std::pair<int, int>, int, Precision, Plan>> {};

TEST_P(Executed, IsTheListOfTransitions) {
  const auto& [mesh, accumulate, precision, preset] = GetParam();
  const Plan plan = preset.accumulate(accumulate).precision(precision);
  const Job job{.plan = plan,
                .ranks = mesh.first,
                .options = {.disk = {.directories = {std::filesystem::temp_directory_path()}}},
                .shard = mesh.second};
  on_ranks<Lm>(job, {}, [&](Lm& model, Engine& engine, int) {
    train_step(model, engine);
    static_cast<void>(engine.traffic());  // waits for what is under way
    const auto log = std::make_shared<Log>();
    engine.observe(log);
    train_step(model, engine);
    static_cast<void>(engine.traffic());
    EXPECT_EQ(with_gathers_once(log->done()), listed(job.plan, engine.layout()));
  });
}

std::string title_of(const testing::TestParamInfo<Executed::ParamType>& info) {
  const auto& [mesh, accumulate, precision, plan] = info.param;
  const std::string groups = mesh.second == 0 ? "" : "InGroupsOf" + std::to_string(mesh.second);
  return in_title(mesh.first, accumulate, precision) + groups + in_title(plan.label());
}

std::vector<Plan> plans_and_with_parameters_on_disk() {
  std::vector<Plan> plans = plans_of_meshes();
  for (const Plan& plan : {Plan::ddp(), Plan::zero3(), Plan::hybrid()})
    plans.push_back(plan.offload(State::parameter, Tier::disk));
  return plans;
}

INSTANTIATE_TEST_SUITE_P(
    All, Executed,
    testing::ValuesIn(covering(std::vector<std::pair<int, int>>{{1, 0}, {2, 0}, {3, 0}, {4, 2}, {6, 3}, {2, 1}},
                               std::vector{1, 3}, std::vector{Precision::fp32, Precision::bf16},
                               plans_and_with_parameters_on_disk())),
    title_of);

}  // namespace zero::test::transitions_test

// Carries a scenario out on one rank, with an engine.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "ranks/scenario/course.h"
#include "ranks/scenario/log.h"
#include "ranks/scenario/network.h"
#include "zero/zero.h"

namespace zero::test::scenario {

class EngineCourse {
 public:
  // `folder`: the same on all ranks, and of this run alone.
  EngineCourse(const Scenario& scenario, const World& world, std::string folder, Log& log);
  void run();
  // An engine is being built: a ConfigError is then a refusal.
  bool building() const { return building_; }

 private:
  void carry_out(const Event& event);
  void build(int plan);
  void backward(const Event& event);
  void micro_batch(const Event& event, int which, int ahead);
  void go_backward(const Event& event, std::vector<at::Tensor> losses);
  void step(const Event& event);
  void zero_grad(const Event& event);
  void forward(const std::string& what, const Event& event, std::int64_t index, Whose whose);
  void evaluate(const Event& event);
  void train(const Event& event, bool trained);
  void read(const Event& event);
  void write(const Event& event);
  void gradient(const Event& event);
  void clamp();
  void set_lr(const Event& event);
  void save(const std::string& name, bool background);
  void load(const std::string& name);
  void move(const Event& event);
  void release(const Event& event);
  void see_parameters(int part);
  void finish();

  const Scenario& scenario_;
  const World& world_;
  std::string folder_;
  Log& log_;
  int rank_;
  Course course_;
  Network network_;
  std::optional<Engine> engine_;
  bool building_ = false;
  double lr_ = 0;
  std::string saved_;
};

// Whose events' names the log has, as another interpreter has to write them.
std::string loss_name(int which, int number, std::int64_t micro_batch, int window);
std::string group_norm_name(std::size_t group);

}  // namespace zero::test::scenario

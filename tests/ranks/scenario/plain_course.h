// Carries a scenario out in one process, for all ranks, with plain LibTorch.
#pragma once

#include <torch/optim.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ranks/scenario/course.h"
#include "ranks/scenario/log.h"
#include "ranks/scenario/network.h"
#include "zero/optimizer.h"

namespace zero::test::scenario {

// Whether plain LibTorch does the same: it has the optimizer, and no random numbers are drawn.
bool has_plain(const Scenario& scenario);

class PlainCourse {
 public:
  // `decided`: the log of an engine, whose overflows in 16 bits are what they are.
  // `shaken`: each weight is a rounding of the precision's off.
  PlainCourse(const Scenario& scenario, const Log& decided, Log& log, bool shaken = false);
  void run();

 private:
  struct Update {
    std::vector<at::Tensor> gradients = {};
    std::vector<double> rates = {};
  };
  struct Saved {
    std::vector<at::Tensor> parameters = {};
    std::string optimizer = {};
    std::int64_t steps = 0;
  };

  void carry_out(const Event& event);
  void begin();
  void shake();
  void backward(const Event& event);
  void micro_batch(const Event& event, int which, int rank, int ahead);
  void step();
  std::vector<double> squares() const;
  bool overflows(double norm) const;
  Update take_update(double norm);
  void apply(const Update& update);
  void take_over();
  void empty(const Event& event);
  void evaluate(const Event& event);
  void gradient(const Event& event);
  void read(const Event& event);
  void write(const Event& event);
  void set_lr(const Event& event);
  void save();
  void load();
  double micro_batches() const;

  const Scenario& scenario_;
  const Log& decided_;
  Log& log_;
  Course course_;
  Network network_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<ParameterRule> rules_;
  std::vector<std::size_t> group_of_;  // by parameter
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  double lr_ = 0;
  std::vector<double> shares_;  // of the rate, for each parameter
  std::int64_t steps_ = 0;
  double loss_ = 0;
  std::optional<Update> late_;
  Saved saved_;
};

}  // namespace zero::test::scenario

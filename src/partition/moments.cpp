#include "partition/moments.h"

#include <array>

namespace zero {
namespace {

using Names = std::array<std::string_view, kMaxMoments>;

Names names_of(const Sgd&) {
  return {"momentum_buffer"};
}
Names names_of(const AdaGrad&) {
  return {"sum"};
}
Names names_of(const RmsProp& o) {
  if (o.momentum != 0) return {"square_avg", "momentum_buffer", "grad_avg"};
  return {"square_avg", "grad_avg"};
}
Names names_of(const Adam&) {
  return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
}
Names names_of(const AdamW&) {
  return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
}
Names names_of(const Lion&) {
  return {"exp_avg"};
}
Names names_of(const Muon&) {
  return {"momentum_buffer"};
}
Names names_of(const Adafactor&) {
  return {"variance"};
}
Names names_of(const Lamb&) {
  return {"exp_avg", "exp_avg_sq"};
}
Names names_of(const TorchOptimizer&) {
  return {};
}

// One name for all that keep the same.
std::string_view kind_of_state(std::string_view name) {
  if (name == "adamw" || name == "lamb") return "adam";
  if (name == "momentum") return "sgd";
  return name;
}

}  // namespace

std::string_view moment_name(const Optimizer& optimizer, int moment) {
  return std::visit([](const auto& value) { return names_of(value); }, optimizer)[static_cast<std::size_t>(moment)];
}

bool same_state(std::string_view one, std::string_view other) {
  return kind_of_state(one) == kind_of_state(other);
}

}  // namespace zero

// What a parameter shows of the gradient that the engine has, and what the program does to that.
#include <algorithm>
#include <utility>
#include <vector>

#include "state/for_unit.h"
#include "state/gradient_mark.h"
#include "state/gradients.h"
#include "state/unit_gradients.h"
#include "zero/error.h"

namespace zero {

void Gradients::show() {
  for (auto& gradients : by_unit_)
    for (std::size_t slot = 0; slot < gradients->ever.size(); ++slot) {
      const at::Tensor& parameter = gradients->unit.parameters()[slot];
      if (!gradients->ever[slot] || parameter.grad().defined()) continue;
      at::Tensor& mark = gradients->marks[slot];
      if (!mark.defined())
        mark = gradient_mark::make(parameter, "rank " + std::to_string(exchange_.rank()) + ", parameter '" +
                                                  gradients->unit.layout().slots()[slot].name + "'");
      gradient_mark::renew(mark);
      parameter.mutable_grad() = mark;
      gradients->shown[slot] = 1;
    }
}

void Gradients::hide() {
  for (auto& gradients : by_unit_)
    for (std::size_t slot = 0; slot < gradients->shown.size(); ++slot)
      if (std::exchange(gradients->shown[slot], char{0})) gradients->unit.parameters()[slot].mutable_grad().reset();
}

Gradients::Shown Gradients::take_back() {
  std::vector<std::pair<UnitGradients*, int>> emptied;
  std::size_t kept = 0;
  for (auto& gradients : by_unit_)
    for (std::size_t slot = 0; slot < gradients->shown.size(); ++slot) {
      if (!gradients->shown[slot]) continue;
      const at::Tensor& grad = gradients->unit.parameters()[slot].grad();
      if (grad.defined() && !gradient_mark::is_one(grad))
        throw StateError("rank " + std::to_string(exchange_.rank()) +
                             ": the program has put a gradient of its own to "
                             "parameter '" +
                             gradients->unit.layout().slots()[slot].name + "', which an engine trains",
                         "let the engine's backward bring it");
      if (grad.defined() && !gradient_mark::emptied(grad)) {
        ++kept;
      } else {
        emptied.emplace_back(gradients.get(), static_cast<int>(slot));
      }
    }
  hide();
  if (kept == 0 && !emptied.empty()) return Shown::emptied;
  for (const auto& [gradients, slot] : emptied) empty(*gradients, slot);
  return Shown::kept;
}

// As if it had not arrived in this step.
void Gradients::empty(UnitGradients& gradients, int slot) {
  before_change_(gradients.unit.index());
  const Slot& place = gradients.unit.layout().slots()[static_cast<std::size_t>(slot)];
  const Slice& held = gradients.held.slice();
  const std::int64_t begin = std::max(place.begin, held.begin), end = std::min(place.end(), held.begin + held.count);
  if (begin < end)
    for_unit(gradients.unit, "the gradient", [&] {
      gradients.held.fill_with_zeros(gradients.home.staging, {begin, end - begin});
    });
  gradients.ever[static_cast<std::size_t>(slot)] = 0;
}

}  // namespace zero

// What a parameter shows of the gradient that the engine has, and what the program does to that.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gradients/grad_placeholder.h"
#include "gradients/gradients.h"
#include "gradients/unit_gradients.h"
#include "units/for_unit.h"
#include "zero/error.h"

namespace zero {
namespace {

// Whether zero_grad() has taken away or filled what was shown.
bool was_emptied(const at::Tensor& grad) {
  return !grad.defined() || (grad_placeholder::is_one(grad) && grad_placeholder::emptied(grad));
}

}  // namespace

void Gradients::show_placeholders() {
  for (auto& gradients : by_unit_)
    for (std::size_t slot = 0; slot < gradients->ever.size(); ++slot) {
      const at::Tensor& parameter = gradients->unit.parameters()[slot];
      if (!shows(*gradients, slot) || parameter.grad().defined()) continue;
      at::Tensor& placeholder = gradients->placeholders[slot];
      if (!placeholder.defined())
        placeholder = grad_placeholder::make(parameter, "rank " + std::to_string(exchange_.rank()) + ", parameter '" +
                                                            gradients->unit.layout().slots()[slot].name + "'");
      grad_placeholder::renew(placeholder);
      parameter.mutable_grad() = placeholder;
      gradients->shown[slot] = 1;
    }
}

bool Gradients::shows(const UnitGradients& gradients, std::size_t slot) const {
  if (gradients.ever[slot] || exchange_.size() == 1) return gradients.ever[slot] != 0;
  const at::Tensor& parameter = gradients.unit.parameters()[slot];
  return gradients.used && parameter.requires_grad() && parameter.numel() > 0;
}

void Gradients::hide_placeholders() {
  for (auto& gradients : by_unit_)
    for (std::size_t slot = 0; slot < gradients->shown.size(); ++slot)
      if (std::exchange(gradients->shown[slot], char{0})) gradients->unit.parameters()[slot].mutable_grad().reset();
}

Gradients::Emptied Gradients::emptied() const {
  bool any = false, all = true;
  for (const auto& gradients : by_unit_)
    for (std::size_t slot = 0; slot < gradients->shown.size(); ++slot) {
      if (!gradients->shown[slot]) continue;
      const bool gone = was_emptied(gradients->unit.parameters()[slot].grad());
      if (!gone && gradients->ever[slot]) return {};
      any = any || gone;
      all = all && gone;
    }
  return {any && all, any};
}

void Gradients::require_none_of_program() const {
  for (const auto& gradients : by_unit_)
    for (std::size_t slot = 0; slot < gradients->shown.size(); ++slot) {
      const at::Tensor& grad = gradients->unit.parameters()[slot].grad();
      if (grad.defined() && !(gradients->shown[slot] && grad.is_same(gradients->placeholders[slot])))
        throw StateError("rank " + std::to_string(exchange_.rank()) +
                             ": the program has put a gradient of its own, or one that it had emptied, to parameter '" +
                             gradients->unit.layout().slots()[slot].name + "', which an engine trains",
                         "let the engine's backward bring it");
    }
}

Gradients::Shown Gradients::collect_placeholders() {
  emptied_.clear();
  bool kept = false;
  std::string numbers;
  for (auto& gradients : by_unit_)
    for (std::size_t slot = 0; slot < gradients->shown.size(); ++slot) {
      if (!gradients->shown[slot]) continue;
      if (!was_emptied(gradients->unit.parameters()[slot].grad())) {
        kept = true;
      } else {
        emptied_.emplace_back(gradients.get(), static_cast<int>(slot));
        gradients->placeholders[slot].reset();  // what the program may have kept is told from the next
        numbers += std::to_string(gradients->unit.layout().slots()[slot].index) + ' ';
      }
    }
  hide_placeholders();
  if (emptied_.empty()) return Shown::kept;
  exchange_.emptied(numbers);
  return kept ? Shown::some_emptied : Shown::all_emptied;
}

void Gradients::empty_some() {
  for (const auto& [gradients, slot] : std::exchange(emptied_, {})) empty(*gradients, slot);
}

// As if it had not arrived in this step.
void Gradients::empty(UnitGradients& gradients, int slot) {
  before_change_(gradients.unit.index());
  const Slot& place = gradients.unit.layout().slot(slot);
  const Slice& held = gradients.held.slice();
  const std::int64_t begin = std::max(place.begin, held.begin), end = std::min(place.end(), held.begin + held.count);
  if (begin < end)
    for_unit(gradients.unit, "the gradient", [&] {
      gradients.held.fill_with_zeros(gradients.home.staging, {begin, end - begin});
    });
  gradients.ever[static_cast<std::size_t>(slot)] = 0;
}

}  // namespace zero

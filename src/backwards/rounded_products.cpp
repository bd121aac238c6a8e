// What products of a forward read, by a way back that is not exact.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "backwards/activation_window.h"
#include "backwards/arguments.h"
#include "backwards/operator_kind.h"
#include "base/random.h"

namespace zero {

// -- What products read.

// What comes of nothing traced is a parameter in another dtype, or the program's data. What a backward computes without
// gradients may be read past operators, by whoever it is for.
void ActivationWindow::may_be_stored(const at::Tensor& result, int number) {
  const auto bytes = stored_.bytes_of(result);
  if (!bytes) return;
  const TracedOperator& its = op(now_);
  if (its.backward && !at::GradMode::is_enabled()) return;
  if (stored_.exact())
    storage(number).stored_bytes = *bytes;
  else if (!its.uses.empty() && !its.backward)
    stored_.for_products(number, *bytes);
}

// To be rounded, and not yet.
bool ActivationWindow::rounds(int number) const {
  return storage(number).storable() && !op(storage(number).writers.back()).rounds;
}

void ActivationWindow::round_arguments(const c10::OperatorHandle& handle, std::span<const c10::IValue> arguments) {
  const bool backward = torch::autograd::get_current_graph_task_id() != -1;
  const bool multiplies = OperatorKind::of(handle).multiplies;
  if (!backward && !multiplies) return;
  for (const c10::IValue& value : arguments)
    for_each_defined(value, [&](const at::Tensor& tensor) {
      const auto number = storages_.number_of(tensor);
      if (!number) return;
      if (backward) {
        if (rounds(*number)) round(handle, *number);
      } else if (const auto bytes = stored_.for_products(*number)) {
        storage(*number).stored_bytes = *bytes;
      }
    });
}

void ActivationWindow::round(const c10::OperatorHandle& handle, int number) {
  constexpr std::uint64_t kRounds = 0x726F756E64;
  now_ = static_cast<int>(trace_.operators.size());
  TracedOperator its;
  its.uses = {{number, state(number).version, /*written=*/true}};
  its.identity = derived(kRounds, static_cast<std::uint64_t>(key(number, state(number).version)));
  its.alike = derived(kRounds, static_cast<std::uint64_t>(storage(number).bytes));
  its.backward = its.rounds = true;
  plan_.meet(its.identity, now_, executions(), so_far().again);
  const bool came = state(number).stored;
  bring(std::span(&number, 1));
  before_overwriting(its.uses);
  make_room(0);
  its.other_bytes = held() - bytes_;
  trace_.operators.push_back(std::move(its));
  calls_.push_back({handle, nullptr});
  if (!came) stored_.round(values_of(number));
  ran();
  written(number);
  state(number).last_use = now_;
  storage(number).readers.push_back(now_);
  storage(number).writers.push_back(now_);
  unpin(std::span(&number, 1));
  now_ = static_cast<int>(trace_.operators.size());
}

}  // namespace zero

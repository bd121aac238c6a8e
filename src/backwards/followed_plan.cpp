#include "backwards/followed_plan.h"

#include <algorithm>
#include <utility>

namespace zero {
namespace {

// Micro-batches of other shapes are told apart by so many operators.
constexpr int kTellTale = 32;

bool drops_nothing(const ActivationPlan& plan, std::int64_t executions) {
  const auto until = std::min(plan.drops.size(), static_cast<std::size_t>(executions) + 1);
  return std::all_of(plan.drops.begin(), plan.drops.begin() + static_cast<std::ptrdiff_t>(until),
                     [](const auto& drops) { return drops.empty(); });
}

template <class What>
std::span<const What> before(const std::vector<std::vector<What>>& all, std::int64_t executions) {
  if (static_cast<std::size_t>(executions) >= all.size()) return {};
  return all[static_cast<std::size_t>(executions)];
}

}  // namespace

FollowedPlan::FollowedPlan(Plans plans) : candidates_(std::move(plans)) {
  if (!candidates_.empty()) followed_ = candidates_.front();
}

void FollowedPlan::leave() {
  followed_ = nullptr;
  candidates_.clear();
}

void FollowedPlan::meet(std::uint64_t identity, int number, std::int64_t executions, std::int64_t again) {
  if (!followed_) return;
  const auto at = static_cast<std::size_t>(number);
  if (at < followed_->plan.begins.size() && followed_->plan.begins[at] != executions) return leave();
  std::erase_if(candidates_, [&](const auto& each) {
    return at >= each->trace.operators.size() || each->trace.operators[at].identity != identity;
  });
  if (std::find(candidates_.begin(), candidates_.end(), followed_) != candidates_.end()) return;
  if (candidates_.empty() || again > 0 || !drops_nothing(followed_->plan, executions) ||
      !drops_nothing(candidates_.front()->plan, executions))
    return leave();
  followed_ = candidates_.front();
}

bool FollowedPlan::decided(int number) const {
  return followed_ != nullptr && candidates_.size() == 1 && number >= kTellTale;
}

std::span<const ActivationPlan::Drop> FollowedPlan::drops(std::int64_t executions) const {
  return before(followed_->plan.drops, executions);
}

std::span<const ActivationPlan::Move> FollowedPlan::moves(std::int64_t executions) const {
  return before(followed_->plan.moves, executions);
}

bool FollowedPlan::kept(std::size_t operators, std::int64_t executions) const {
  return followed_ && operators == followed_->trace.operators.size() && executions == followed_->plan.executions;
}

}  // namespace zero

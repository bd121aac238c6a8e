#include "update/sites.h"

#include <algorithm>
#include <initializer_list>

#include "partition/staging.h"

namespace zero {
namespace {

// Of stores, one of which may be null.
template <class Is>
const Store* first_of(std::initializer_list<const Store*> stores, const Is& is) {
  const auto* const found =
      std::ranges::find_if(stores, [&](const Store* store) { return store != nullptr && is(*store); });
  return found == stores.end() ? nullptr : *found;
}

const Store* offloaded(const Store& states, const Store& gradients, const Store* parameters) {
  return first_of({&states, &gradients, parameters}, [](const Store& store) { return store.tier() != Tier::device; });
}

Device& computing(const Store* offloaded, const Accounts& accounts) {
  return accounts.computing(offloaded == nullptr ? Tier::device : offloaded->tier());
}

// Operations go as the disk's store likes them, where there is one.
StagingShape shape_of(const UnitStores& states, const Store& gradients, const Store* parameters, bool on_device) {
  const Store* const slow =
      first_of({&states.offloaded(), &gradients, parameters}, [](const Store& store) { return !store.addressable(); });
  const bool divided = states.resident() != nullptr && parameters != nullptr;
  const Tier of_parameters = parameters == nullptr ? Tier::device : parameters->tier();
  return staging_of_update({states.offloaded().tier(), gradients.tier(), of_parameters, divided}, on_device,
                           slow == nullptr ? kCopyBlock : slow->transfer(), slow == nullptr ? 1 : slow->page());
}

Site most_of(const UnitStores& states, const UnitStores& gradients, const Store* parameters, Accounts& accounts,
             bool on_host) {
  const Store* const store = offloaded(states.offloaded(), gradients.offloaded(), parameters);
  Device& computes = computing(store, accounts);
  return {computes, accounts.staging(computes, shape_of(states, gradients.offloaded(), parameters, on_host)), store};
}

}  // namespace

Sites::Sites(std::size_t units, const UnitStores& states, const UnitStores& gradients, const Store* parameters,
             Accounts& accounts)
    : on_host_(&computing(offloaded(states.offloaded(), gradients.offloaded(), parameters), accounts) !=
               &accounts.device()),
      most_(most_of(states, gradients, parameters, accounts, on_host_)),
      by_unit_(units, &most_) {
  if (parameters != nullptr || most_.offloaded == nullptr) return;
  resident_.emplace(Site{accounts.device(), accounts.staging(accounts.device(), {kCopyBlock}), nullptr});
  for (std::size_t unit = 0; unit < units; ++unit) {
    const int index = static_cast<int>(unit);
    if (offloaded(states.of(index), gradients.of(index), nullptr) == nullptr) by_unit_[unit] = &*resident_;
  }
}

}  // namespace zero

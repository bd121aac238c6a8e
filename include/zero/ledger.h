// Every byte that the engine and the operators of the model hold, by owner and tier. Snapshots are plain values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "zero/plan.h"

namespace zero {

enum class Owner : std::uint8_t {
  parameter,   // parameters at rest: whole or shards
  gradient,    // accumulated gradients: whole or shards
  optimizer,   // moments and main weights
  gathered,    // sharded parameters paged in
  reduction,   // flat gradients on their way to the shards
  update,      // what optimizers over whole tensors exchange
  activation,  // what operators allocated in the micro-batch at hand: activations, gradients, temporaries
  snapshot,    // a copy of what this rank saves, while it is being written
};
inline constexpr int kOwners = 8;
std::string_view name(Owner owner);
Owner owner_of(State state);

struct Ledger {
  struct Entry {
    std::int64_t bytes = 0;
    std::int64_t peak = 0;
    bool operator==(const Entry&) const = default;
  };
  std::array<Entry, kOwners> entries{};                        // on the device
  std::array<std::array<Entry, kOwners>, kTiers - 1> below{};  // on the host and on disk
  std::int64_t peak_held = 0;
  std::int64_t peak_total = 0;

  const Entry& operator[](Owner owner) const { return entries[static_cast<std::size_t>(owner)]; }
  // On a tier; the device's is operator[].
  const Entry& on(Tier tier, Owner owner) const {
    return tier == Tier::device ? (*this)[owner]
                                : below[static_cast<std::size_t>(tier) - 1][static_cast<std::size_t>(owner)];
  }
  std::int64_t on_all_tiers(Owner owner) const {
    std::int64_t sum = 0;
    for (const Tier tier : {Tier::device, Tier::host, Tier::disk}) sum += on(tier, owner).bytes;
    return sum;
  }
  // Of the device: by all owners.
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const Entry& entry : entries) sum += entry.bytes;
    return sum;
  }
  // What the engine holds of the device: all but activations.
  std::int64_t held() const { return total() - (*this)[Owner::activation].bytes; }
  // Books bytes that were taken, or given back where they are negative.
  void add(Owner owner, std::int64_t bytes, Tier tier = Tier::device) {
    auto& row = tier == Tier::device ? entries : below[static_cast<std::size_t>(tier) - 1];
    Entry& entry = row[static_cast<std::size_t>(owner)];
    entry.bytes += bytes;
    entry.peak = std::max(entry.peak, entry.bytes);
    peak_held = std::max(peak_held, held());
    peak_total = std::max(peak_total, total());
  }
  bool operator==(const Ledger&) const = default;
};

}  // namespace zero

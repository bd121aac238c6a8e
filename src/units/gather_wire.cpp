#include "units/gather_wire.h"

#include "partition/transitions.h"

namespace zero {
GatherWire::GatherWire(const Layout& layout, const Plan& plan, Accounts& accounts)
    : device_(accounts.device()),
      wire_(movement(plan).gathers ? plan[State::parameter].wire : Wire::native),
      over_(movement(plan).within) {
  const std::int64_t bytes = wire_room(layout, plan);
  if (bytes > 0) codes_ = accounts.visible_buffer(Owner::gathered, bytes, at::kByte);
}

void GatherWire::gather(const Groups& groups, const UnitLayout& unit, View shard, View whole, bool exactly) const {
  if (exactly || exact(unit)) return groups.gather(shard, whole, over_);
  const std::int64_t slices = whole.count / shard.count, bytes = coded_bytes(shard.count, unit.dtype(), wire_);
  auto* const codes = static_cast<std::uint8_t*>(codes_.data());
  const View mine{codes + unit.slice(over_, groups.rank()).begin / shard.count * bytes, bytes, Dtype::u8, shard.device};
  device_.run(Encode{shard.data, shard.dtype, static_cast<std::uint8_t*>(mine.data), shard.count});
  groups.gather(mine, {codes, slices * bytes, Dtype::u8, shard.device}, over_);
  for (std::int64_t i = 0; i < slices; ++i)
    device_.run(
        Decode{codes + i * bytes, static_cast<char*>(whole.data) + i * shard.bytes(), whole.dtype, shard.count});
}

}  // namespace zero

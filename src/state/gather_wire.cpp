#include "state/gather_wire.h"

#include <algorithm>

#include "base/float8_blocks.h"
#include "partition/transitions.h"

namespace zero {
namespace {

void encode(View values, std::uint8_t* out) {
  switch (values.dtype) {
    case Dtype::bf16: return encode_blocks(static_cast<const Bf16*>(values.data), out, values.count);
    case Dtype::f16: return encode_blocks(static_cast<const Fp16*>(values.data), out, values.count);
    default: return encode_blocks(static_cast<const float*>(values.data), out, values.count);
  }
}

void decode(const std::uint8_t* in, View values) {
  switch (values.dtype) {
    case Dtype::bf16: return decode_blocks(in, static_cast<Bf16*>(values.data), values.count);
    case Dtype::f16: return decode_blocks(in, static_cast<Fp16*>(values.data), values.count);
    default: return decode_blocks(in, static_cast<float*>(values.data), values.count);
  }
}

}  // namespace

GatherWire::GatherWire(const Layout& layout, const Plan& plan, Accounts& accounts)
    : wire_(plan[State::parameter].wire), over_(movement(plan).within) {
  const std::int64_t bytes = wire_room(layout, plan);
  if (bytes > 0) codes_ = accounts.visible_buffer(Owner::gathered, bytes, at::kByte);
}

void GatherWire::gather(const Groups& groups, const UnitLayout& unit, View shard, View whole, bool exactly) const {
  if (exactly || exact(unit)) return groups.gather(shard, whole, over_);
  const std::int64_t slices = whole.count / shard.count, bytes = coded_bytes(shard.count, unit.dtype(), wire_);
  auto* const codes = static_cast<std::uint8_t*>(codes_.data());
  const View mine{codes + unit.slice(over_, groups.rank()).begin / shard.count * bytes, bytes, Dtype::u8};
  encode(shard, static_cast<std::uint8_t*>(mine.data));
  groups.gather(mine, {codes, slices * bytes, Dtype::u8}, over_);
  for (std::int64_t i = 0; i < slices; ++i) {
    View slice = whole;
    slice.count = shard.count;
    slice.data = static_cast<char*>(whole.data) + i * shard.bytes();
    decode(codes + i * bytes, slice);
  }
}

}  // namespace zero

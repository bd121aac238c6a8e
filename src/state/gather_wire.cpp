#include "state/gather_wire.h"

#include <algorithm>

#include "base/float8_blocks.h"

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
    : wire_(plan[State::parameter].wire) {
  const std::int64_t bytes = wire_room(layout, plan);
  if (bytes > 0) codes_ = Buffer::visible(accounts, Owner::gathered, bytes, at::kByte, at::kCPU);
}

void GatherWire::gather(const Communicator& communicator, const UnitLayout& unit, View shard, View whole,
                        bool exactly) const {
  if (exactly || exact(unit)) return communicator.all_gather(shard, whole).wait();
  const std::int64_t bytes = slice_bytes(unit, wire_);
  auto* const codes = static_cast<std::uint8_t*>(codes_.data());
  encode(shard, codes + communicator.rank() * bytes);
  const View sent{codes + communicator.rank() * bytes, bytes, Dtype::u8};
  communicator.all_gather(sent, {codes, communicator.size() * bytes, Dtype::u8}).wait();
  for (int rank = 0; rank < communicator.size(); ++rank) {
    View slice = whole;
    slice.count = shard.count;
    slice.data = static_cast<char*>(whole.data) + rank * shard.bytes();
    decode(codes + rank * bytes, slice);
  }
}

}  // namespace zero

#include "update/state_span.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/codec.h"
#include "base/elements.h"
#include "base/error_feedback.h"
#include "base/half.h"
#include "device/device.h"
#include "memory/staged_pass.h"
#include "memory/tier_meter.h"

namespace zero {
namespace {

// The blocks that some values of an array are in, as an array of their own in the host's memory.
class Blocks {
 public:
  Blocks(const CodedValues& of, std::int64_t n)
      : first_(of.first / Codec::kBlock * Codec::kBlock),
        count_(std::min(round_up(of.first + n, Codec::kBlock), of.count) - first_),
        heads_(of.array + first_ / Codec::kBlock * Codec::kHead),
        codes_(of.array + bytes_of_heads<Codec>(of.count) + first_),
        array_(static_cast<std::size_t>(bytes_of_codes<Codec>(count_))),
        values_(static_cast<std::size_t>(count_)) {}

  void fetch(Device& device) {
    device.to_host(array_.data(), heads_, heads());
    device.to_host(array_.data() + heads(), codes_, count_);
    each([](std::int64_t count, const feedback::Coded& at, Bf16* values) {
      Codec::decode(at.codes, at.heads, count, 0, count, values);
    });
  }
  void store(Device& device) {
    each([](std::int64_t count, const feedback::Coded& at, Bf16* values) {
      Codec::encode(values, count, at.codes, at.heads);
    });
    device.from_host(heads_, array_.data(), heads());
    device.from_host(codes_, array_.data() + heads(), count_);
  }
  Bf16* at(std::int64_t value) { return values_.data() + (value - first_); }

 private:
  using Codec = ErrorBlocks;
  std::int64_t heads() const { return bytes_of_heads<Codec>(count_); }
  void each(const auto& use) {
    feedback::each_block<Codec>(count_, feedback::coded<Codec>(array_.data(), count_),
                                [&](std::int64_t begin, std::int64_t count, const feedback::Coded& at) {
                                  use(count, at, values_.data() + begin);
                                });
  }

  std::int64_t first_, count_;
  std::uint8_t *heads_, *codes_;
  std::vector<std::uint8_t> array_;
  std::vector<Bf16> values_;
};

void scaled(const Bf16* from, std::int64_t n, float by, Bf16* to) {
  for (std::int64_t i = 0; i < n; ++i) narrow(widen(from[i]) * by, to[i]);
}

}  // namespace

void CodedValues::read(Device& device, std::int64_t n, void* values) const {
  if (array == nullptr) {
    std::memset(values, 0, bytes_of(n, Dtype::bf16));
    return;
  }
  Blocks blocks(*this, n);
  blocks.fetch(device);
  scaled(blocks.at(first), n, 1 / scale, static_cast<Bf16*>(values));
}

// Others of a block stay as they are: what was decoded is encoded to the same codes.
void CodedValues::write(Device& device, std::int64_t n, const void* values) const {
  if (array == nullptr) return;
  Blocks blocks(*this, n);
  blocks.fetch(device);
  scaled(static_cast<const Bf16*>(values), n, scale, blocks.at(first));
  blocks.store(device);
}

void StateSpan::lies_in(const BlockPart& where) {
  if (where.block->addressable()) {
    memory = static_cast<char*>(where.block->view().data) + where.at;
    of_host = where.block->lies_on(Block::kHost);
  } else {
    block = where.block;
    at = where.at;
  }
}

bool StateSpan::in_place(const Device& device) const {
  return memory != nullptr && (of_host || device.is_host());
}

void StateSpan::read(Device& device, View to) const {
  const TierMeter::SetupTraffic apart;
  if (codes) return codes->read(device, count(), to.data);
  if (block != nullptr) return block->read(at, to).wait();
  if (!of_host) return device.to_host(to.data, memory, to.bytes());
  std::memcpy(to.data, memory, static_cast<std::size_t>(to.bytes()));
}

void StateSpan::write(Device& device, ConstView from) const {
  const TierMeter::SetupTraffic apart;
  if (codes) return codes->write(device, count(), from.data);
  if (block != nullptr) return block->write(at, from).wait();
  if (!of_host) return device.from_host(memory, from.data, from.bytes());
  std::memcpy(memory, from.data, static_cast<std::size_t>(from.bytes()));
}

}  // namespace zero

#include "update/state_span.h"

#include <cstring>

#include "device/device.h"
#include "memory/staged_pass.h"
#include "memory/tier_meter.h"

namespace zero {

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
  if (block != nullptr) return block->read(at, to).wait();
  if (!of_host) return device.to_host(to.data, memory, to.bytes());
  std::memcpy(to.data, memory, static_cast<std::size_t>(to.bytes()));
}

void StateSpan::write(Device& device, ConstView from) const {
  const TierMeter::SetupTraffic apart;
  if (block != nullptr) return block->write(at, from).wait();
  if (!of_host) return device.from_host(memory, from.data, from.bytes());
  std::memcpy(memory, from.data, static_cast<std::size_t>(from.bytes()));
}

}  // namespace zero

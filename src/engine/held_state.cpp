#include "engine/held_state.h"

#include "device/device.h"
#include "memory/passage.h"
#include "memory/tier_meter.h"

namespace zero {

void HeldState::lies_in(const BlockPart& there) {
  if (there.block->addressable()) {
    memory = static_cast<char*>(there.block->view().data) + there.at;
  } else {
    block = there.block;
    at = there.at;
  }
}

bool HeldState::in_place(const Device& device) const {
  return memory != nullptr && device.is_host();
}

void HeldState::read(Device& device, View to) const {
  const TierMeter::Apart apart;
  if (block != nullptr) return block->read(at, to).wait();
  device.to_host(to.data, memory, to.bytes());
}

void HeldState::write(Device& device, ConstView from) const {
  const TierMeter::Apart apart;
  if (block != nullptr) return block->write(at, from).wait();
  device.from_host(memory, from.data, from.bytes());
}

}  // namespace zero

#include "update/held_state.h"

#include <cstring>

#include "device/device.h"
#include "memory/passage.h"
#include "memory/tier_meter.h"

namespace zero {

void HeldState::lies_in(const BlockPart& where) {
  if (where.block->addressable()) {
    memory = static_cast<char*>(where.block->view().data) + where.at;
    of_host = where.block->lies_on(Block::kHost);
  } else {
    block = where.block;
    at = where.at;
  }
}

bool HeldState::in_place(const Device& device) const {
  return memory != nullptr && (of_host || device.is_host());
}

void HeldState::read(Device& device, View to) const {
  const TierMeter::Apart apart;
  if (block != nullptr) return block->read(at, to).wait();
  if (!of_host) return device.to_host(to.data, memory, to.bytes());
  std::memcpy(to.data, memory, static_cast<std::size_t>(to.bytes()));
}

void HeldState::write(Device& device, ConstView from) const {
  const TierMeter::Apart apart;
  if (block != nullptr) return block->write(at, from).wait();
  if (!of_host) return device.from_host(memory, from.data, from.bytes());
  std::memcpy(memory, from.data, static_cast<std::size_t>(from.bytes()));
}

}  // namespace zero

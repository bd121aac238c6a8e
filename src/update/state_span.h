// What this rank holds of the state of a unit's parameters, told piece by piece.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "zero/communicator.h"
#include "zero/layout.h"
#include "zero/state.h"

namespace zero {

struct BlockPart;
class Block;
class Device;
class TorchStep;

// Values as ErrorBlocks in memory of a device: those from `first` of an array of `count` on, each `scale` times what is
// told, a power of two; of no array (null) they are zeros.
struct CodedValues {
  std::uint8_t* array = nullptr;
  std::int64_t count = 0, first = 0;
  float scale = 1;

  // `n` of them, to the host's memory and from it, as bf16, which holds each of them exactly.
  void read(Device& device, std::int64_t n, void* values) const;
  void write(Device& device, std::int64_t n, const void* values) const;
};

// Elements [begin, end) of a tensor in the order of memory, from `memory` of the device on, or of the host, or from
// byte `at` of `block` where that is not addressable; or in codes.
struct StateSpan {
  const Slot* slot = nullptr;  // whose parameter it is
  StateKind kind = StateKind::parameter;
  std::string part = {};
  std::int64_t begin = 0, end = 0;
  void* memory = nullptr;
  bool of_host = false;  // the memory is
  Block* block = nullptr;
  std::int64_t at = 0;
  std::optional<CodedValues> codes = {};
  std::optional<Axis> over = {};  // of which it is a slice: of `data` this rank's alone; none: every rank has the same
  TorchStep* torch = nullptr;  // of StateKind::optimizer, instead of memory: what is kept of these elements, all fields

  std::int64_t count() const { return end - begin; }
  // Says where they are.
  void lies_in(const BlockPart& where);
  // Whether the host may read and write them at `memory`.
  bool in_place(const Device& device) const;
  // All of them, to the host's memory and from it.
  void read(Device& device, View to) const;
  void write(Device& device, ConstView from) const;
};
using VisitState = std::function<void(const StateSpan&)>;

}  // namespace zero

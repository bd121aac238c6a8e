#include "partition/state_pieces.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "partition/element_order.h"
#include "zero/error.h"

namespace zero {
namespace {

// Elements read at a time where a parameter's memory is in another order, and from how many in a row on they are read
// straight to their place.
constexpr std::int64_t kChunk = std::int64_t{1} << 16, kLongRun = 256;

}  // namespace

std::string_view name(StateKind kind) {
  switch (kind) {
    case StateKind::parameter: return "parameter";
    case StateKind::main_weight: return "main weight";
    case StateKind::remainder: return "remainder";
    case StateKind::moment: return "moment";
    case StateKind::scale: return "scale";
    case StateKind::row: return "row";
    case StateKind::column: return "column";
    case StateKind::optimizer: return "optimizer";
    case StateKind::gathered: return "gathered";
    case StateKind::error: return "error";
    case StateKind::buffer: return "buffer";
  }
  return "?";
}

std::string describe(const StateKey& key) {
  return key.name + " " + std::string(name(key.kind)) + (key.part.empty() ? "" : " " + key.part);
}

std::int64_t StateTensor::numel() const {
  return elements_of(shape);
}

std::string describe(const StateTensor& tensor) {
  std::string text = std::string(name(tensor.dtype)) + " " + listed(tensor.shape);
  if (!tensor.blocks) return text;
  text += " of blocks of " + std::to_string(tensor.blocks->size) + ", the first after " +
          std::to_string(tensor.blocks->before) + " elements of others";
  return tensor.blocks->order.empty() ? text : text + ", dimensions in the order " + listed(tensor.blocks->order);
}

StatePiece::StatePiece(std::size_t tensor, std::int64_t count, int copy, int copies,
                       std::shared_ptr<const Values> values)
    : tensor_(tensor), count_(count), copy_(copy), copies_(copies), values_(std::move(values)) {}

void StatePiece::ranges(const Ranges& tell) const {
  std::int64_t first = 0, last = 0;  // of the range at hand
  values_->each([&](std::int64_t begin, std::int64_t end, std::int64_t) {
    if (begin != last) {
      if (last > first) tell(first, last);
      first = begin;
    }
    last = end;
  });
  if (last > first) tell(first, last);
}

void StatePiece::read(const Read& take) const {
  values_->read(take);
}

EngineState::EngineState(StateScalars scalars, std::vector<StateTensor> tensors, std::vector<StatePiece> pieces)
    : scalars_(std::move(scalars)), tensors_(std::move(tensors)), pieces_(std::move(pieces)) {}

void StatePiece::Values::read(const Read& take) const {
  if (valid_.expired())
    throw StateError("a piece of an engine's state is read after the engine has gone on, or ended",
                     "call state() again, and read it before the next step");
  const std::shared_ptr<const void> held = hold_();
  const auto* const values = static_cast<const char*>(held.get());
  each([&](std::int64_t begin, std::int64_t end, std::int64_t place) {
    take(begin, end, values + (place - begin_) * item_);
  });
}

void StretchWriter::write(const StateStretch& stretch, const Read& read) {
  const std::int64_t item = size_of(stretch.dtype);
  auto* const memory = static_cast<char*>(stretch.memory);
  first_ = last_ = 0;
  stretch.order.each_run(stretch.begin, stretch.end, [&](std::int64_t first, std::int64_t last, std::int64_t place) {
    char* to = memory + (place - stretch.begin) * item;
    if (stretch.order.row_major() || last - first >= kLongRun) return read(first, last, to);
    for (; first < last; ++first, to += item) {
      if (first >= last_) fetch(first, std::min(first + kChunk, stretch.order.numel()), item, read);
      std::memcpy(to, chunk_.data() + (first - first_) * item, static_cast<std::size_t>(item));
    }
  });
}

void StretchWriter::fetch(std::int64_t first, std::int64_t last, std::int64_t item, const Read& read) {
  chunk_.resize(static_cast<std::size_t>(kChunk * item));
  read(first, last, chunk_.data());
  first_ = first;
  last_ = last;
}

}  // namespace zero

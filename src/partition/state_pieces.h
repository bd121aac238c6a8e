// Pieces of state in this rank's memory: read and written in row-major order, whatever their own. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "partition/element_order.h"
#include "zero/state.h"

namespace zero {

// Elements [begin, end) of a tensor in the order of its memory, from `memory` on.
struct StateStretch {
  ElementOrder order;
  std::int64_t begin, end;
  Dtype dtype;
  void* memory;
};

class StatePiece::Values {
 public:
  // `hold` gives the memory of elements [begin, end), which stays as long as what it returns; nothing is read when
  // `valid` has expired. `order`, `begin` and `end` are of the elements that `stretches` says of the tensor.
  using Hold = std::function<std::shared_ptr<const void>()>;
  Values(ElementOrder order, std::int64_t begin, std::int64_t end, Dtype dtype, Hold hold,
         std::weak_ptr<const void> valid, Stretches stretches = {})
      : order_(std::move(order)),
        stretches_(stretches),
        begin_(begin),
        end_(end),
        item_(size_of(dtype)),
        hold_(std::move(hold)),
        valid_(std::move(valid)) {}

  void each(const ElementOrder::Run& tell) const {
    order_.each_run(begin_, end_, [&](std::int64_t first, std::int64_t last, std::int64_t place) {
      stretches_.each(first, last,
                      [&](std::int64_t there, std::int64_t end, std::int64_t at) { tell(there, end, place + at); });
    });
  }
  void read(const Read& take) const;

 private:
  ElementOrder order_;
  Stretches stretches_;
  std::int64_t begin_, end_, item_;
  Hold hold_;
  std::weak_ptr<const void> valid_;
};

class StretchWriter {
 public:
  // Of row-major elements [first, last).
  using Read = std::function<void(std::int64_t first, std::int64_t last, void* values)>;
  // Straight to its memory where that is row-major, else through a buffer of constant size.
  void write(const StateStretch& stretch, const Read& read);

 private:
  void fetch(std::int64_t first, std::int64_t last, std::int64_t item, const Read& read);

  std::vector<char> chunk_;
  std::int64_t first_ = 0, last_ = 0;  // elements that it has
};

}  // namespace zero

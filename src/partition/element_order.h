// The order of a dense tensor's elements in memory, against the row-major one. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace zero {

// Of a tensor of that shape.
std::int64_t elements_of(const std::vector<std::int64_t>& shape);

// Where the elements of a part of a tensor are in the whole, both in row-major order: stretches of `length` elements, a
// `pitch` apart, from `first` on. Without a length it is one stretch.
struct Stretches {
  std::int64_t first = 0, length = 0, pitch = 0;

  // Calls tell(begin, end, at) for elements [begin, end) of the part, as [begin, end) of the whole, `at` being how many
  // of the part's came before.
  template <class Tell>
  void each(std::int64_t begin, std::int64_t end, const Tell& tell) const {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t last = length == 0 ? end : std::min(end, (at / length + 1) * length);
      const std::int64_t there = length == 0 ? first + at : at / length * pitch + first + at % length;
      tell(there, there + (last - at), at - begin);
      at = last;
    }
  }
};

class ElementOrder {
 public:
  explicit ElementOrder(const std::vector<std::int64_t>& shape);  // row-major
  ElementOrder(std::vector<std::int64_t> shape, std::vector<std::int64_t> strides);

  bool row_major() const { return row_major_; }
  std::int64_t numel() const;
  // Dimensions from the slowest to the fastest, without those of length 0 or 1.
  std::vector<std::int64_t> dimensions() const;

  // Elements [begin, end) in the order of memory, in row-major order: elements [first, last) of the tensor lie from
  // `place` of memory on, one after the other. Ascending, as few as there are.
  using Run = std::function<void(std::int64_t first, std::int64_t last, std::int64_t place)>;
  void each_run(std::int64_t begin, std::int64_t end, const Run& tell) const;

 private:
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  bool row_major_;
};

}  // namespace zero

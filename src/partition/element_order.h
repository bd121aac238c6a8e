// The order of a dense tensor's elements in memory, against the row-major one. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace zero {

// Of a tensor of that shape.
std::int64_t elements_of(const std::vector<std::int64_t>& shape);

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

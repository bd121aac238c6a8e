#include "partition/element_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace zero {
namespace {

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Goes through a tensor in row-major order and leaves out what is not between two places of memory.
class Walk {
 public:
  Walk(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides, std::int64_t begin,
       std::int64_t end, const ElementOrder::Run& tell)
      : shape_(shape), strides_(strides), begin_(begin), end_(end), tell_(tell), numel_(1), reach_(0) {
    for (std::size_t d = shape.size(); d-- > 0;) {
      within_.insert(within_.begin(), {numel_, reach_});
      numel_ *= shape[d];
      reach_ += (shape[d] - 1) * strides[d];
    }
  }

  void run() && {
    if (numel_ > 0) below(0, 0, 0);
    flush();
  }

 private:
  // Of the dimensions behind one: elements, and how far from the first the last one lies.
  struct Within {
    std::int64_t numel, reach;
  };

  void below(std::size_t dimension, std::int64_t element, std::int64_t place) {
    if (dimension == shape_.size()) return add(element, place);
    const auto [numel, reach] = within_[dimension];
    for (std::int64_t i = 0; i < shape_[dimension]; ++i) {
      const std::int64_t there = place + i * strides_[dimension];
      if (there >= end_) break;
      if (there + reach >= begin_) below(dimension + 1, element + i * numel, there);
    }
  }

  void add(std::int64_t element, std::int64_t place) {
    if (element != last_ || place != place_ + last_ - first_) {
      flush();
      first_ = element;
      place_ = place;
    }
    last_ = element + 1;
  }

  void flush() {
    if (last_ > first_) tell_(first_, last_, place_);
    first_ = last_;
  }

  const std::vector<std::int64_t>& shape_;
  const std::vector<std::int64_t>& strides_;
  std::int64_t begin_, end_;
  const ElementOrder::Run& tell_;
  std::int64_t numel_, reach_;
  std::vector<Within> within_;
  std::int64_t first_ = 0, last_ = 0, place_ = 0;  // of the run at hand
};

}  // namespace

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

ElementOrder::ElementOrder(const std::vector<std::int64_t>& shape) : ElementOrder(shape, row_major_strides(shape)) {}

ElementOrder::ElementOrder(std::vector<std::int64_t> shape, std::vector<std::int64_t> strides)
    : shape_(std::move(shape)), strides_(std::move(strides)) {
  const std::vector<std::int64_t> order = dimensions();
  row_major_ = std::ranges::is_sorted(order);
}

std::int64_t ElementOrder::numel() const {
  return elements_of(shape_);
}

std::vector<std::int64_t> ElementOrder::dimensions() const {
  std::vector<std::int64_t> order;
  for (std::size_t d = 0; d < shape_.size(); ++d)
    if (shape_[d] > 1) order.push_back(static_cast<std::int64_t>(d));
  std::ranges::stable_sort(order, std::greater(), [&](auto d) { return strides_[static_cast<std::size_t>(d)]; });
  return order;
}

void ElementOrder::each_run(std::int64_t begin, std::int64_t end, const Run& tell) const {
  if (begin >= end) return;
  if (row_major_) return tell(begin, end, begin);
  Walk(shape_, strides_, begin, end, tell).run();
}

}  // namespace zero

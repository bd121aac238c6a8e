#include "gradients/held_gradient.h"

#include <algorithm>

#include "base/elements.h"

namespace zero {

void HeldGradient::take(Store& store, int unit, int levels) {
  std::vector<Block> taken;
  for (int level = 0; level < levels; ++level)
    taken.push_back(store.take(slice_.count * size_of(dtype_), Owner::gradient, unit));
  levels_ = std::move(taken);
}

View HeldGradient::view(const Slice& elements) const {
  return {at_element(levels_.front().view().data, elements.begin - slice_.begin, dtype_), elements.count, dtype_,
          device_->index()};
}

// Who reads a sum changes no handle of it.
BlockPart HeldGradient::part(const Block& level, Dtype dtype, const Slice& elements, Access way) const {
  return {const_cast<Block*>(&level), (elements.begin - slice_.begin) * size_of(dtype), elements.count * size_of(dtype),
          way};
}

BlockPart HeldGradient::part(const Slice& elements) const {
  return part(levels_.front(), dtype_, elements, Access::read);
}

void HeldGradient::fill_with_zeros(Staging& staging, const Slice& elements) {
  for (const Block& level : levels_)
    each_stretch(
        staging, elements.count,
        [&](std::int64_t first, std::int64_t count) {
          return std::vector{part(level, dtype_, {elements.begin + first, count}, Access::write)};
        },
        [this](std::span<void* const> at, std::int64_t, std::int64_t count) {
          device_->zero(at[0], count * size_of(dtype_));
        });
}

void HeldGradient::add(StagedPass& passage, const AccumulateStep& how, const Slice& elements,
                       const std::shared_ptr<Block>& gradient, Dtype dtype) {
  const auto parts = [&](std::int64_t first, std::int64_t count) {
    const Slice some{elements.begin + first, count};
    std::vector<BlockPart> used(levels_.size());
    for (const int source : how.sources)
      used[static_cast<std::size_t>(source)] =
          part(levels_[static_cast<std::size_t>(source)], dtype_, some, Access::read);
    const auto target = static_cast<std::size_t>(how.target);
    const bool reads = std::ranges::find(how.sources, how.target) != how.sources.end();
    used[target] = part(levels_[target], dtype_, some, reads ? Access::update : Access::write);
    used.push_back({gradient.get(), first * size_of(dtype), count * size_of(dtype), Access::read});
    return used;
  };
  each_stretch(passage, elements.count, parts,
               [device = device_, how, kept = dtype_, gradient, dtype](std::span<void* const> at, std::int64_t,
                                                                       std::int64_t count) {
                 device->run(Accumulate::of(how, at, kept, at.back(), dtype, count));
               });
}

void HeldGradient::read(Staging& staging, const Slice& elements, const Read& use) const {
  each_stretch(
      staging, elements.count,
      [&](std::int64_t first, std::int64_t count) {
        return std::vector{part({elements.begin + first, count})};
      },
      [&use](std::span<void* const> at, std::int64_t first, std::int64_t count) { use(at[0], first, count); });
}

void HeldGradient::convert_to(Staging& staging, int level, const Slice& elements, Block& to, std::int64_t first,
                              Dtype dtype) const {
  each_stretch(
      staging, elements.count,
      [&](std::int64_t begin, std::int64_t count) {
        const Slice some{elements.begin + begin, count};
        return std::vector{part(levels_[static_cast<std::size_t>(level)], dtype_, some, Access::read),
                           BlockPart{&to, (first + begin) * size_of(dtype), count * size_of(dtype), Access::write}};
      },
      [&](std::span<void* const> at, std::int64_t, std::int64_t count) {
        device_->run(Convert{at[0], dtype_, at[1], dtype, count});
      });
}

HeldGradient HeldGradient::widened(Staging& staging, Store& store, int unit, Dtype dtype) const {
  HeldGradient wide(*device_, slice_, dtype);
  if (levels_.empty()) return wide;
  wide.take(store, unit, static_cast<int>(levels_.size()));
  for (std::size_t level = 0; level < levels_.size(); ++level)
    convert_to(staging, static_cast<int>(level), slice_, wide.levels_[level], 0, dtype);
  return wide;
}

}  // namespace zero

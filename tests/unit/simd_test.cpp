// The kernels of several instruction sets, each set by itself: the same sources, compiled again for one
// set in a namespace of its own.
#include "base/simd.h"

#include <cmath>
#include <type_traits>

#include "comm/tree_sum.h"
#include "comm_reference.h"
#include "engine/update.h"
#include "zero/error.h"

// NOLINTBEGIN(bugprone-suspicious-include)
namespace plain {
using namespace zero;
}
namespace avx2 {
using namespace zero;
}
namespace avx512 {
using namespace zero;
}

#undef ZERO_MULTIVERSION
#define ZERO_MULTIVERSION
#define zero plain
#include "comm/tree_sum.cpp"
#include "engine/update.cpp"
#undef zero

#ifdef __x86_64__
#undef ZERO_MULTIVERSION
#define ZERO_MULTIVERSION __attribute__((target("arch=x86-64-v3")))
#define zero avx2
#include "comm/tree_sum.cpp"
#include "engine/update.cpp"
#undef zero

#undef ZERO_MULTIVERSION
#define ZERO_MULTIVERSION __attribute__((target("arch=x86-64-v4")))
#define zero avx512
#include "comm/tree_sum.cpp"
#include "engine/update.cpp"
#undef zero
#endif
// NOLINTEND(bugprone-suspicious-include)

namespace zero::test {
namespace {

struct InstructionSet {
  const char* name;
  decltype(&plain::tree_sum) sum;
  decltype(&plain::tree_sum_rounded) sum_rounded;
  decltype(&plain::update) update;
};

// Those of this processor, the least one first.
std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets = {{"plain", plain::tree_sum, plain::tree_sum_rounded, plain::update}};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back({"AVX2", avx2::tree_sum, avx2::tree_sum_rounded, avx2::update});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    sets.push_back({"AVX-512", avx512::tree_sum, avx512::tree_sum_rounded, avx512::update});
#endif
  return sets;
}

// More than any vector, and a tail of every length.
constexpr std::int64_t kCounts[] = {64, 65, 71, 78, 127, 1061};

TEST(InstructionSets, SumToTheSameBits) {
  for (const InstructionSet& set : instruction_sets())
    for (const Dtype dtype : kSummed)
      for (const int n : {1, 2, 3, 4, 5, 8, 9})
        for (const std::int64_t count : kCounts) {
          SCOPED_TRACE(testing::Message() << set.name << ": " << n << " sources of " << count << " " << name(dtype));
          std::vector<Array> sources;
          std::vector<const void*> pointers;
          for (int s = 0; s < n; ++s) sources.push_back(random_array(dtype, count, s));
          for (const Array& source : sources) pointers.push_back(source.bytes.data());
          Array sums(accumulation(dtype), count), rounded(dtype, count);
          set.sum(pointers, dtype, sums.bytes.data(), count);
          set.sum_rounded(pointers, dtype, rounded.bytes.data(), count);
          EXPECT_EQ(sums, reference_sum(sources));
          EXPECT_EQ(rounded, reference_rounded_sum(sources));
        }
}

// What an update works on.
struct Shard {
  Shard(Dtype type, std::int64_t count)
      : dtype(type),
        main(random(1, count)),
        gradient(random(2, count)),
        first(random(3, count)),
        second(random(4, count)),
        parameter(type, count) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (type == Dtype::f64)
        second.at<double>(i) = std::abs(second.at<double>(i));
      else
        second.at<float>(i) = std::abs(second.at<float>(i));
    }
  }

  Array random(int seed, std::int64_t count) const { return random_array(accumulation(dtype), count, seed); }

  UpdateRange range(std::int64_t begin, std::int64_t count) {
    const auto at = [&](Array& array) { return array.slice(begin, count).data; };
    return {at(main), at(gradient), {at(first), at(second)}, at(parameter), dtype, count};
  }
  bool operator==(const Shard&) const = default;

  Dtype dtype;
  Array main, gradient, first, second, parameter;
};

// An update of everything at once, and one of each element by itself, so that nothing is a vector.
template <class Range>
void expect_same_bits(const Optimizer& optimizer, const Range& range) {
  const UpdateFactors factors{0.37, 1e-2, 0.1, 3};
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16})
    for (const std::int64_t count : kCounts) {
      Shard expected(dtype, count);
      for (std::int64_t i = 0; i < count; ++i) plain::update(optimizer, factors, range(expected, i, 1));
      for (const InstructionSet& set : instruction_sets()) {
        Shard shard(dtype, count);
        set.update(optimizer, factors, range(shard, 0, count));
        EXPECT_EQ(shard, expected) << set.name << ": " << count << " " << name(dtype);
      }
    }
}

TEST(InstructionSets, UpdateToTheSameBits) {
  const auto whole = [](Shard& shard, std::int64_t begin, std::int64_t count) { return shard.range(begin, count); };
  expect_same_bits(AdamW{}, whole);
  expect_same_bits(Sgd{.momentum = 0.9, .nesterov = true}, whole);
}

#ifndef __clang_analyzer__  // it does not see which optimizer a variant holds
TEST(InstructionSets, DescendToTheSameBits) {
  expect_same_bits(Sgd{}, [](Shard& shard, std::int64_t begin, std::int64_t count) {
    UpdateRange range = shard.range(begin, count);
    range.moments[0] = nullptr;
    return range;
  });
}
#endif

}  // namespace
}  // namespace zero::test

// The kernels of several instruction sets, each set by itself: the same sources, compiled again for one
// set in a namespace of its own.
#include "base/targets.h"

#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>

#include "base/random.h"
#include "comm/tree_sum.h"
#include "comm_reference.h"
#include "device/cases.h"
#include "optimizers.h"
#include "partition/moments.h"
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
#include "device/host_kernels.cpp"
#undef zero

#ifdef __x86_64__
#undef ZERO_MULTIVERSION
#define ZERO_MULTIVERSION __attribute__((target("arch=x86-64-v3")))
#define zero avx2
#undef zero

#undef ZERO_MULTIVERSION
#define ZERO_MULTIVERSION __attribute__((target("arch=x86-64-v4")))
#define zero avx512
#undef zero
#endif
// NOLINTEND(bugprone-suspicious-include)

namespace zero::test {
namespace {

struct InstructionSet {
  const char* name;
  decltype(&plain::tree_sum) sum;
  decltype(&plain::tree_sum_rounded) sum_rounded;
  decltype(&plain::run_on_host) run;
};

// Those of this processor, the least one first.
std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets = {{"plain", plain::tree_sum, plain::tree_sum_rounded, plain::run_on_host}};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back({"AVX2", avx2::tree_sum, avx2::tree_sum_rounded, avx2::run_on_host});
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    sets.push_back({"AVX-512", avx512::tree_sum, avx512::tree_sum_rounded, avx512::run_on_host});
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

// Values of one moment: none negative, as under a root, and the first larger than the square of the others, as a
// mean of squares is.
Array moment(Dtype dtype, std::int64_t count, int which) {
  if (dtype == Dtype::u8) return random_array(dtype, count, which);
  Array random = random_array(Dtype::f64, count, which);
  Array values(dtype, count);
  for (std::int64_t i = 0; i < count; ++i) {
    const double size = std::abs(random.at<double>(i));
    const double value = which == 0 ? 0.5 + size : size / 1024;
    if (dtype == Dtype::f64) values.at<double>(i) = value;
    if (dtype == Dtype::f32) values.at<float>(i) = static_cast<float>(value);
    if (dtype == Dtype::bf16) narrow(static_cast<float>(value), values.at<Bf16>(i));
  }
  return values;
}

// What an update works on: a stretch of a parameter that begins in the middle of a block.
struct Shard {
  static constexpr std::int64_t kInBlock = 192;

  Shard(const Optimizer& optimizer, Dtype type, Remainder how, std::int64_t count)
      : dtype(type),
        remainder(how),
        main(random_array(accumulation(type), count, 1)),
        gradient(random_array(accumulation(type), count, 2)),
        parameter(random_array(type, count, 3)),
        rest(type, count) {
    for (int i = 0; i < kMaxMoments; ++i) {
      moments.push_back(moment(moment_dtype(optimizer, type), count, i));
      scales.push_back(moment(Dtype::f32, count / kStateBlock + 2, i));
    }
  }

  UpdateRange range(std::int64_t begin, std::int64_t count) {
    const auto at = [&](Array& array) { return array.slice(begin, count).data; };
    UpdateRange range;
    range.main = remainder == Remainder::main_weights ? at(main) : nullptr;
    range.gradient = at(gradient);
    range.parameter = at(parameter);
    range.compensation = at(rest);
    range.dtype = dtype;
    range.count = count;
    range.remainder = remainder;
    range.first = (std::int64_t{1} << 32) - 70 + begin;
    range.in_block = (kInBlock + begin) % kStateBlock;
    for (std::size_t i = 0; i < kMaxMoments; ++i) {
      range.moments[i] = at(moments[i]);
      range.scales[i] = &scales[i].at<float>((kInBlock + begin) / kStateBlock);
    }
    return range;
  }
  bool operator==(const Shard&) const = default;

  Dtype dtype;
  Remainder remainder;
  Array main, gradient, parameter, rest;
  std::vector<Array> moments, scales;
};

constexpr UpdateFactors kFactors{.scale = 0.37, .lr = 1e-2, .step = 3, .seed = 11};

// An update of each element by itself, so that nothing is a vector; codes need their blocks together.
Shard updated_plainly(const Optimizer& optimizer, Shard shard, std::int64_t count) {
  const bool together = moment_dtype(optimizer, shard.dtype) == Dtype::u8;
  if (together) plain::run_on_host(Update{optimizer, kFactors, shard.range(0, count)});
  for (std::int64_t i = 0; !together && i < count; ++i)
    plain::run_on_host(Update{optimizer, kFactors, shard.range(i, 1)});
  return shard;
}

template <class T>
void make_odd(Array& array) {
  using Limits = std::numeric_limits<T>;
  constexpr T odd[] = {Limits::quiet_NaN(),  Limits::infinity(), -Limits::infinity(), Limits::max(), Limits::lowest(),
                       Limits::denorm_min(), -Limits::min() / 4, Limits::min(),       T{0},          -T{0}};
  for (std::int64_t i = 0; i < array.count; i += 3)
    array.at<T>(i) = odd[static_cast<std::size_t>(i / 3) % std::size(odd)];
}

enum class Gradient { usual, odd };

void expect_same_bits(const Optimizer& optimizer, Dtype dtype, Remainder remainder, Gradient kind) {
  for (const std::int64_t count : kCounts) {
    Shard start(optimizer, dtype, remainder, count);
    if (kind == Gradient::odd) dtype == Dtype::f64 ? make_odd<double>(start.gradient) : make_odd<float>(start.gradient);
    const Shard expected = updated_plainly(optimizer, start, count);
    EXPECT_NE(expected, start);
    for (const InstructionSet& set : instruction_sets()) {
      Shard shard = start;
      set.run(Update{optimizer, kFactors, shard.range(0, count)});
      EXPECT_EQ(shard, expected) << set.name << ": " << count << " " << name(dtype);
    }
  }
}

void expect_same_bits_of_all(Gradient kind) {
  for (const auto& list : {every_optimizer(), narrow_moments()})
    for (const Optimizer& optimizer : list) {
      SCOPED_TRACE(describe(optimizer));
      for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16})
        expect_same_bits(optimizer, dtype, Remainder::main_weights, kind);
      for (const Remainder remainder : {Remainder::lost, Remainder::random, Remainder::kept})
        expect_same_bits(optimizer, Dtype::bf16, remainder, kind);
    }
}

TEST(InstructionSets, UpdateToTheSameBits) {
  expect_same_bits_of_all(Gradient::usual);
}

TEST(InstructionSets, UpdateToTheSameBitsFromOddGradients) {
  expect_same_bits_of_all(Gradient::odd);
}

// Of Fowler, Noll and Vo.
class Checksum {
 public:
  void add(const void* data, std::size_t bytes) {
    const auto* const at = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) value_ = (value_ ^ at[i]) * 0x100000001b3;
  }
  void add(const Array& array) { add(array.bytes.data(), array.bytes.size()); }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

std::uint64_t checksum_of_updates(Dtype dtype, Remainder remainder, Gradient kind) {
  Checksum sum;
  for (const auto& list : {every_optimizer(), narrow_moments()})
    for (const Optimizer& optimizer : list) {
      Shard shard(optimizer, dtype, remainder, 1061);
      if (kind == Gradient::odd)
        dtype == Dtype::f64 ? make_odd<double>(shard.gradient) : make_odd<float>(shard.gradient);
      run_on_host(Update{optimizer, {.scale = 0.37, .lr = 1e-2, .step = 1, .seed = 11}, shard.range(0, 1061)});
      for (const Array* array : {&shard.main, &shard.parameter, &shard.rest}) sum.add(*array);
      for (const Array& moments : shard.moments) sum.add(moments);
      for (const Array& scales : shard.scales) sum.add(scales);
    }
  return sum.value();
}

// A quicker kernel must not change them.
TEST(Kernels, UpdateToTheBitsThatTheyAlwaysHad) {
  using enum Remainder;
  struct Case {
    Dtype dtype;
    Remainder remainder;
    std::uint64_t usual, odd;
  };
  for (const Case& c : {Case{Dtype::f32, main_weights, 0x78fd0f70fadf16b6, 0x97e17f0bc13f976d},
                        Case{Dtype::f64, main_weights, 0xeadb6f021fdd2b83, 0x31c88ada6b579926},
                        Case{Dtype::bf16, main_weights, 0x3eebdf276f3da450, 0xfd4434bed393598b},
                        Case{Dtype::f16, main_weights, 0x61567fdeb224a4ee, 0x2e56cff9aa94841e},
                        Case{Dtype::bf16, lost, 0x9dfa33a51ef9ea74, 0xc30840816e246a3d},
                        Case{Dtype::bf16, Remainder::random, 0xc64e837fe7691fc3, 0x3cd0db49a75a1e81},
                        Case{Dtype::bf16, kept, 0x4bb81a20460b1564, 0xe9162b7b614c6a44}}) {
    SCOPED_TRACE(testing::Message() << name(c.dtype) << ", remainder " << static_cast<int>(c.remainder));
    EXPECT_EQ(checksum_of_updates(c.dtype, c.remainder, Gradient::usual), c.usual);
    EXPECT_EQ(checksum_of_updates(c.dtype, c.remainder, Gradient::odd), c.odd);
  }
}

// Of every exponent and sign, and of all that is near to a tie.
TEST(Kernels, RoundToTheBitsThatTheyAlwaysHad) {
  Checksum bf16, random, fp16, wide;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xf000u, 0xffffu}) {
      const auto value = std::bit_cast<float>(high << 16 | low);
      Bf16 nearest, either;
      narrow(value, nearest);
      narrow_at_random(value, (high + low) * 0x9e3779b9U, either);
      const Fp16 half(value);
      bf16.add(&nearest, 2);
      random.add(&either, 2);
      fp16.add(&half, 2);
    }
    Fp16 half;
    half.bits = static_cast<std::uint16_t>(high);
    const float widened[] = {widen(half), widen(Bf16{half.bits})};
    wide.add(widened, sizeof widened);
  }
  EXPECT_EQ(bf16.value(), 0x6ff78804f089d405);
  EXPECT_EQ(random.value(), 0x022578873bedb0c3);
  EXPECT_EQ(fp16.value(), 0x3633f9c5570192f5);
  EXPECT_EQ(wide.value(), 0xdb9af8dc89617ea5);
}

void widen_into(Array& narrow, Array& wide) {
  for (std::int64_t i = 0; i < narrow.count; ++i)
    wide.at<float>(i) = narrow.dtype == Dtype::bf16 ? widen(narrow.at<Bf16>(i)) : widen(narrow.at<Fp16>(i));
}

// What `work` makes of a shard whose gradient is in 16 bits, and of one with the same gradient in fp32.
template <class Work>
void expect_same_of_narrow(const Optimizer& optimizer, Dtype dtype, std::int64_t count, const Work& work) {
  Shard wide(optimizer, dtype, Remainder::main_weights, count);
  Array gradient = random_array(dtype, count, 2);
  widen_into(gradient, wide.gradient);
  Shard narrow = wide;
  UpdateRange range = narrow.range(0, count);
  range.gradient = gradient.bytes.data();
  range.narrow_gradient = true;
  EXPECT_EQ(work(range), work(wide.range(0, count)));
  EXPECT_EQ(narrow, wide) << count << " " << name(dtype);
}

TEST(NarrowGradients, UpdateAsTheyDoWhenWidened) {
  for (const auto& list : {every_optimizer(), narrow_moments()})
    for (const Optimizer& optimizer : list)
      for (const Dtype dtype : {Dtype::bf16, Dtype::f16})
        for (const std::int64_t count : kCounts) {
          SCOPED_TRACE(describe(optimizer));
          expect_same_of_narrow(optimizer, dtype, count, [&](const UpdateRange& range) {
            run_on_host(Update{optimizer, kFactors, range});
            return 0;
          });
        }
}

// In two parts, which begin and end within blocks.
TEST(NarrowGradients, AreFollowedByWholeTensorsAsWhenWidened) {
  for (const Optimizer& optimizer : whole_optimizers())
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      SCOPED_TRACE(describe(optimizer));
      expect_same_of_narrow(optimizer, dtype, 1061, [&](const UpdateRange& range) {
        Array input(Dtype::f32, 1061), weights(Dtype::f32, 1061);
        run_on_host(ReadWeights{range, weights.bytes.data()});
        for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 300}, {300, 1061}})
          run_on_host(UpdateMoments{optimizer, kFactors, part_of(range, begin, end - begin), &weights.at<float>(begin),
                                    &input.at<float>(begin), Dtype::f32});
        return input;
      });
    }
}

}  // namespace
}  // namespace zero::test

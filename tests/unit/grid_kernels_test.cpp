// The kernels of devices that have a thread for each element, run on the host: their bits are the host's.
#include "device/grid_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "base/codec.h"
#include "base/error_blocks.h"
#include "optimizers.h"
#include "partition/accumulation_order.h"
#include "partition/moments.h"

namespace zero::test::grid_kernels_test {

struct Loops {
  template <class Body>
  void elements(std::int64_t count, const Body& body) const {
    for (std::int64_t i = count; i-- > 0;) body(i);  // threads have no order
  }
  template <class Body>
  void blocks(std::int64_t count, const Body& body) const {
    for (std::int64_t b = 0; b < count; ++b) block(b, body);
  }
  template <class Body>
  void sums(std::int64_t count, const Body& body, int n, std::int64_t* out) const {
    for (std::int64_t i = count; i-- > 0;)
      body(i, [&](int k, std::int64_t value) {
        ASSERT_LT(k, n);
        out[k] += value;
      });
  }
  template <class Body>
  void most(std::int64_t count, const Body& body, std::int32_t* out, std::int32_t* also) const {
    for (std::int64_t i = count; i-- > 0;)
      for (std::int32_t* const to : {out, also})
        if (to != nullptr) *to = std::max(*to, body(i));
  }

 private:
  template <class Body>
  static void block(std::int64_t b, const Body& body) {
    std::vector<typename Body::State> states(kStateBlock);
    std::vector<char> mine(kStateBlock);
    std::array<std::int32_t, kMaxMoments> largest{};
    for (int t = 0; t < kStateBlock; ++t) {
      typename Body::State& state = states[static_cast<std::size_t>(t)];
      mine[static_cast<std::size_t>(t)] = body.load(b, t, state);
      for (int k = 0; mine[static_cast<std::size_t>(t)] && k < Body::kMoments; ++k)
        largest.at(static_cast<std::size_t>(k)) = std::max(largest.at(static_cast<std::size_t>(k)), state.magnitude(k));
    }
    for (int t = 0; t < kStateBlock; ++t)
      if (mine[static_cast<std::size_t>(t)]) body.store(b, t, states[static_cast<std::size_t>(t)], largest.data());
  }
};

void on_grid(const OwnKernel& kernel) {
  grid::Kernels(Loops{}).run(kernel);
}

constexpr std::int64_t kCount = 3 * kStateBlock + 77;

std::vector<float> numbers(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Numbers of a dtype, as bytes.
std::vector<char> array_of(Dtype dtype, std::int64_t count, unsigned seed, float size = 1) {
  const std::vector<float> wide = numbers(count, seed);
  std::vector<char> bytes(static_cast<std::size_t>(count * size_of(dtype)));
  const auto fill = [&]<class T>(T*, const auto& make) {
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const T value = make(wide[i] * size);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  };
  const auto narrowed = []<class T>(T*) {
    return [](float value) {
      T out;
      narrow(value, out);
      return out;
    };
  };
  switch (dtype) {
    case Dtype::f64: fill(static_cast<double*>(nullptr), [](float value) { return double{value} * 1.00000001; }); break;
    case Dtype::bf16: fill(static_cast<Bf16*>(nullptr), narrowed(static_cast<Bf16*>(nullptr))); break;
    case Dtype::f16: fill(static_cast<Fp16*>(nullptr), narrowed(static_cast<Fp16*>(nullptr))); break;
    default: fill(static_cast<float*>(nullptr), [](float value) { return value; });
  }
  return bytes;
}

// All that an update goes over.
struct Arrays {
  std::vector<char> main, gradient, parameter, rest;
  std::array<std::vector<char>, kMaxMoments> moments;
  std::array<std::vector<float>, kMaxMoments> scales;
  bool operator==(const Arrays&) const = default;
};

struct Case {
  Dtype dtype;
  Remainder remainder = Remainder::main_weights;
  bool narrow_gradient = false;
};

std::vector<Case> cases() {
  return {{Dtype::f32},
          {Dtype::f64},
          {Dtype::bf16},
          {Dtype::bf16, Remainder::main_weights, true},
          {Dtype::f16},
          {Dtype::f16, Remainder::main_weights, true},
          {Dtype::bf16, Remainder::lost},
          {Dtype::bf16, Remainder::random},
          {Dtype::bf16, Remainder::kept, true}};
}

Arrays arrays_for(const Case& each, const Optimizer& optimizer) {
  const Dtype wide = accumulation(each.dtype);
  Arrays arrays;
  if (each.remainder == Remainder::main_weights) arrays.main = array_of(wide, kCount, 1);
  arrays.gradient = array_of(each.narrow_gradient ? each.dtype : wide, kCount, 2);
  if (each.dtype != wide) arrays.parameter = array_of(each.dtype, kCount, 1);
  if (each.remainder == Remainder::kept) arrays.rest = array_of(each.dtype, kCount, 3, 1e-4F);
  for (std::size_t i = 0; i < static_cast<std::size_t>(moments(optimizer)); ++i) {
    const MomentFormat format = wide == Dtype::f64 ? MomentFormat::wide : moment_format(optimizer);
    const Dtype dtype = moment_dtype(format, each.dtype);
    arrays.moments[i].assign(static_cast<std::size_t>(kCount * size_of(dtype)), 0);
    if (format == MomentFormat::block8) {
      arrays.scales[i].assign(static_cast<std::size_t>(kCount / kStateBlock + 2), 0);
      arrays.moments[i].assign(static_cast<std::size_t>(kCount), i == 0 ? 127 : 0);
    }
  }
  return arrays;
}

UpdateRange range_of(Arrays& arrays, const Case& each, std::int64_t in_block) {
  UpdateRange range;
  const auto at = [](std::vector<char>& bytes) { return bytes.empty() ? nullptr : bytes.data(); };
  range.main = at(arrays.main);
  range.gradient = at(arrays.gradient);
  range.narrow_gradient = each.narrow_gradient;
  range.parameter = at(arrays.parameter);
  range.compensation = at(arrays.rest);
  range.dtype = each.dtype;
  range.count = kCount;
  range.remainder = each.remainder;
  range.first = 5;
  range.in_block = in_block;
  for (std::size_t i = 0; i < kMaxMoments; ++i) {
    range.moments[i] = at(arrays.moments[i]);
    range.scales[i] = arrays.scales[i].empty() ? nullptr : arrays.scales[i].data();
  }
  return range;
}

TEST(GridKernels, UpdateLikeTheHost) {
  std::vector<Optimizer> optimizers = every_optimizer();
  for (const Optimizer& each : narrow_moments()) optimizers.push_back(each);
  int updates = 0;
  for (const Optimizer& optimizer : optimizers)
    for (const Case& each : cases())
      for (const std::int64_t in_block : {0, 100}) {
        SCOPED_TRACE(testing::Message() << name(optimizer) << ", " << name(each.dtype) << ", " << in_block);
        Arrays host = arrays_for(each, optimizer), device = host;
        for (std::int64_t step = 1; step <= 3; ++step) {
          const UpdateFactors factors{.scale = 0.5, .lr = 0.01, .step = step, .seed = 7};
          run_on_host(Update{optimizer, factors, range_of(host, each, in_block)});
          on_grid(Update{optimizer, factors, range_of(device, each, in_block)});
          ASSERT_TRUE(host == device) << "step " << step;
        }
        ++updates;
      }
  EXPECT_GT(updates, 200);
}

// What is read as weights is where the input is written, as the engine has it.
TEST(GridKernels, ComputeInputsAndStepsOverWholeTensorsLikeTheHost) {
  for (const Optimizer& optimizer : whole_optimizers())
    for (const Case& each : cases()) {
      if (each.remainder != Remainder::main_weights) continue;
      SCOPED_TRACE(testing::Message() << name(optimizer) << ", " << name(each.dtype));
      Arrays host = arrays_for(each, optimizer), device = host;
      const Dtype wide = accumulation(each.dtype);
      std::vector<char> host_step(static_cast<std::size_t>(kCount * size_of(wide))), device_step = host_step;
      const UpdateFactors factors{.scale = 0.5, .lr = 0.01, .step = 2, .seed = 7};
      const UpdateRange there = range_of(device, each, 0), here = range_of(host, each, 0);
      run_on_host(ReadWeights{here, host_step.data()});
      on_grid(ReadWeights{there, device_step.data()});
      ASSERT_EQ(host_step, device_step);
      run_on_host(UpdateMoments{optimizer, factors, here, host_step.data(), host_step.data(), wide});
      on_grid(UpdateMoments{optimizer, factors, there, device_step.data(), device_step.data(), wide});
      ASSERT_EQ(host_step, device_step);
      run_on_host(ApplyStep{0.9, 0.3, host_step.data(), factors, here});
      on_grid(ApplyStep{0.9, 0.3, device_step.data(), factors, there});
      ASSERT_TRUE(host == device);
      std::vector<char> host_input(host_step), device_input(host_step);
      run_on_host(UpdateMoments{optimizer, factors, here, nullptr, host_input.data(), Dtype::bf16});
      on_grid(UpdateMoments{optimizer, factors, there, nullptr, device_input.data(), Dtype::bf16});
      ASSERT_EQ(host_input, device_input);
    }
}

TEST(GridKernels, AccumulateLikeTheHost) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16})
    for (const Dtype kept : {accumulation(dtype), dtype})
      for (const bool tree : {false, true})
        for (const bool absent : {false, true}) {
          const Plan plan = Plan::ddp().accumulate(7).reproducible(tree);
          const AccumulationOrder order(plan, 1, 0);
          std::vector<std::vector<char>> host(static_cast<std::size_t>(order.levels()), array_of(kept, kCount, 1)),
              device = host;
          for (int micro = 0; micro < 7; ++micro) {
            const AccumulateStep how = order.steps(micro).front();
            const std::vector<char> gradient = array_of(dtype, kCount, static_cast<unsigned>(micro));
            const void* const from = absent && micro == 3 ? nullptr : gradient.data();
            const auto levels = [](std::vector<std::vector<char>>& of) {
              std::vector<void*> places;
              for (std::vector<char>& level : of) places.push_back(level.data());
              return places;
            };
            run_on_host(Accumulate::of(how, levels(host), kept, from, dtype, kCount));
            on_grid(Accumulate::of(how, levels(device), kept, from, dtype, kCount));
          }
          EXPECT_EQ(host, device);
        }
}

void expect_same_squares(const std::vector<char>& values, Dtype dtype, std::int64_t count) {
  ExactSum host, device;
  std::int64_t host_nonfinite = 0;
  sum_of_squares(values.data(), dtype, count, host, host_nonfinite);
  std::vector<std::int64_t> limbs(kSquareLimbs);
  on_grid(AddSquares{values.data(), dtype, count, limbs.data()});
  device.add(std::span<const std::int64_t>(limbs).first(ExactSum::kLimbs));
  EXPECT_TRUE(std::ranges::equal(host.limbs(), device.limbs()));
  EXPECT_EQ(host_nonfinite, limbs.back());
}

TEST(GridKernels, AddSquaresLikeTheHost) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16})
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, kSquareBlock, kSquareBlock + 3, kCount})
      for (const float size : {1.0F, 1e-30F, 1e18F}) expect_same_squares(array_of(dtype, count, 4, size), dtype, count);
  std::vector<char> broken = array_of(Dtype::f32, kCount, 4);
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, std::size_t{500}}) {
    const float value = at == 500 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    std::memcpy(broken.data() + at * sizeof(float), &value, sizeof(float));
  }
  expect_same_squares(broken, Dtype::f32, kCount);
}

TEST(GridKernels, EncodeAndDecodeWiresLikeTheHost) {
  for (const Wire wire : {Wire::bf16_codes, Wire::fp8, Wire::int8, Wire::int4, Wire::int4_hadamard})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
      for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, block_of(wire), block_of(wire) + 5, kCount}) {
        std::vector<char> values = array_of(dtype, count, 8, 30);
        if (count == kCount) std::memset(values.data() + 100 * size_of(dtype), 0x7f, 1000);  // not finite, or huge
        const auto bytes = static_cast<std::size_t>(bytes_of_codes(wire, count));
        std::vector<std::uint8_t> host(bytes), device(bytes);
        run_on_host(Encode{values.data(), dtype, host.data(), count, wire});
        on_grid(Encode{values.data(), dtype, device.data(), count, wire});
        EXPECT_EQ(host, device);
        std::vector<char> there(values.size());
        run_on_host(Decode{host.data(), values.data(), dtype, count, wire});
        on_grid(Decode{host.data(), there.data(), dtype, count, wire});
        EXPECT_EQ(values, there);
      }
}

// From what is there, and added to it; where blocks are not finite, nothing is.
TEST(GridKernels, EncodeAndDecodeDifferencesLikeTheHost) {
  constexpr Wire wire = Wire::int4_differences;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
    for (const std::int64_t count : {std::int64_t{1}, block_of(wire), block_of(wire) + 5, kCount}) {
      const std::vector<char> values = array_of(dtype, count, 8, 30);
      std::vector<char> there = array_of(dtype, count, 9, 30);
      if (count == kCount) std::memset(there.data() + 100 * size_of(dtype), 0x7f, 1000);
      std::vector<char> here = there;
      const auto bytes = static_cast<std::size_t>(bytes_of_codes(wire, count));
      std::vector<std::uint8_t> host(bytes), device(bytes);
      run_on_host(Encode{values.data(), dtype, host.data(), count, wire, there.data()});
      on_grid(Encode{values.data(), dtype, device.data(), count, wire, there.data()});
      EXPECT_EQ(host, device);
      run_on_host(Decode{host.data(), there.data(), dtype, count, wire, /*adds=*/true});
      on_grid(Decode{host.data(), here.data(), dtype, count, wire, /*adds=*/true});
      EXPECT_EQ(there, here);
    }
}

// In several rounds, of which each has the errors of the one before.
TEST(GridKernels, EncodeWithErrorsLikeTheHost) {
  for (const Wire wire : {Wire::bf16_codes, Wire::fp8, Wire::int8, Wire::int4, Wire::int4_hadamard})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{127}, block_of(wire) + 5, kCount}) {
        std::vector<char> values = array_of(dtype, count, 8, 30);
        if (count == kCount) std::memset(values.data() + 100 * size_of(dtype), 0x7f, 1000);  // not finite, or huge
        std::vector<std::uint8_t> host(static_cast<std::size_t>(bytes_of_codes(wire, count))), device(host);
        std::vector<std::uint8_t> host_errors(static_cast<std::size_t>(bytes_of_codes<ErrorBlocks>(count)));
        std::vector<std::uint8_t> device_errors = host_errors;
        for (int round = 0; round < 3; ++round) {
          run_on_host(Encode{values.data(), dtype, host.data(), count, wire, nullptr, host_errors.data()});
          on_grid(Encode{values.data(), dtype, device.data(), count, wire, nullptr, device_errors.data()});
          EXPECT_EQ(host, device);
          EXPECT_EQ(host_errors, device_errors);
        }
      }
}

struct InFloat8 {
  float noted = 2.5F;
  Float8Scale scale{};
  std::vector<std::uint8_t> codes = {};
  std::vector<std::uint16_t> values = {};
};

// NaN too.
auto bits(const Float8Scale& scale) {
  return std::bit_cast<std::array<std::uint32_t, 3>>(scale);
}

// `run`: on the host, or as on a grid.
InFloat8 in_float8(const auto& run, Float8Format format, const std::vector<char>& values, Dtype dtype, float given) {
  const std::int64_t count = static_cast<std::int64_t>(values.size()) / size_of(dtype);
  InFloat8 result;
  result.codes.resize(static_cast<std::size_t>(count));
  result.values.resize(static_cast<std::size_t>(count));
  run(FindLargest{values.data(), dtype, count, &result.scale.largest, &result.noted});
  run(ToFloat8{format, values.data(), dtype, count, given, &result.scale, result.codes.data()});
  run(FromFloat8{format, result.codes.data(), result.values.data(), count});
  return result;
}

TEST(GridKernels, ScaleAndRoundToFloat8LikeTheHost) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
    for (const Float8Format format : {Float8Format::e4m3, Float8Format::e5m2})
      for (const float size : {1.0F, 1e-30F, 1e18F, 0.0F, std::numeric_limits<float>::infinity()})
        for (const float given : {0.0F, 0x1p20F})
          for (const std::int64_t count : {std::int64_t{0}, kCount}) {
            const std::vector<char> values = array_of(dtype, count, 3, size);
            const InFloat8 host = in_float8(run_on_host, format, values, dtype, given);
            const InFloat8 device = in_float8(on_grid, format, values, dtype, given);
            EXPECT_EQ(std::bit_cast<std::uint32_t>(host.noted), std::bit_cast<std::uint32_t>(device.noted));
            EXPECT_EQ(bits(host.scale), bits(device.scale));
            EXPECT_EQ(host.codes, device.codes);
            EXPECT_EQ(host.values, device.values);
          }
}

TEST(GridKernels, ScaleToBelowTheLargestOfAFormat) {
  for (int exponent = -149; exponent < 128; ++exponent)
    for (const float mantissa : {1.0F, 1.75F, std::nextafter(1.75F, 2.0F), std::nextafter(2.0F, 1.0F)})
      for (const double format : {448.0, 57344.0}) {
        const float largest = std::ldexp(mantissa, exponent), scale = float8::scale_into(format, largest);
        int kept = 0;
        EXPECT_EQ(std::frexp(scale, &kept), 0.5F);
        EXPECT_TRUE(double{scale} * largest <= format || scale == 0x1p-40F) << largest;
        EXPECT_TRUE(double{scale} * largest * 2 > format || scale == 0x1p40F) << largest;
      }
  EXPECT_EQ(float8::scale_into(448, 0), 1);
  EXPECT_EQ(float8::scale_of(448, 1, 8), 8);
  EXPECT_TRUE(std::isnan(float8::scale_of(448, std::numeric_limits<float>::infinity(), 8)));
}

TEST(GridKernels, KeepWeightsLikeTheHost) {
  const std::vector<float> values = numbers(kCount, 5);
  std::vector<Bf16> host(values.size()), device(values.size());
  const auto same = [&] { return std::memcmp(host.data(), device.data(), host.size() * sizeof(Bf16)) == 0; };
  run_on_host(StartCompensation{values.data(), host.data(), kCount});
  on_grid(StartCompensation{values.data(), device.data(), kCount});
  EXPECT_TRUE(same());
  const std::vector<char> written = array_of(Dtype::bf16, kCount, 6);
  run_on_host(ResetCompensation{written.data(), host.data(), kCount});
  on_grid(ResetCompensation{written.data(), device.data(), kCount});
  EXPECT_TRUE(same());
  for (const Dtype stored : {Dtype::bf16, Dtype::f16}) {
    std::vector<float> main = values, there = values;
    const std::vector<char> other = array_of(stored, kCount, 5);
    std::vector<char> changed = other;
    changed[10] = static_cast<char>(changed[10] ^ 1);
    run_on_host(AdoptWritten{changed.data(), stored, main.data(), kCount});
    on_grid(AdoptWritten{changed.data(), stored, there.data(), kCount});
    EXPECT_EQ(main, there);
    EXPECT_NE(main, values);
  }
}

}  // namespace zero::test::grid_kernels_test

// What is computed in a device's memory: kernels, as values of their operands. A new one is a struct here, named in
// OwnKernel, a body in host_kernels.cpp and one in grid_kernels.h, with the same bits: grid_kernels_test compares them.
// No torch.
//
// each_range(visit) calls visit(pointer, bytes) for each array that a kernel uses, null ones too; `visit` may put the
// pointer elsewhere. Arrays of constants are read, others are written, and may be read. They do not overlap, unless it
// is said.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/codec.h"
#include "base/elements.h"
#include "base/error_blocks.h"
#include "base/exact_sum.h"
#include "base/float8.h"
#include "partition/accumulation_order.h"
#include "zero/dtype.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace zero {

// ArrayKernel: what LibTorch's operators compute on each of its devices (torch/torch_device.cpp).

// Values of f32 or f64 become `value`.
struct Fill {
  void* values;
  Dtype dtype;
  std::int64_t count;
  double value;
};

// Rounds to nearest.
struct Convert {
  const void* from;
  Dtype from_dtype;
  void* to;
  Dtype to_dtype;
  std::int64_t count;
};

// sum += addend, in the wider of the two dtypes, rounded to that of the sum.
struct Add {
  void* sum;
  Dtype sum_dtype;
  const void* addend;
  Dtype dtype;
  std::int64_t count;
};

// Values of f32 or f64, in place.
struct Multiply {
  void* values;
  Dtype dtype;
  std::int64_t count;
  double factor;
};

// OwnKernel: gradients.

// What an AccumulateStep says: target = ((gradient + ...)), every source being the left operand in turn, of which one
// may be the target. Sums are made in accumulation(dtype).
struct Accumulate {
  std::vector<const void*> sources;
  void* target;
  Dtype kept;            // of sources and target
  const void* gradient;  // null: zeros
  Dtype dtype;
  std::int64_t count;

  static Accumulate of(const AccumulateStep& fold, std::span<void* const> levels, Dtype kept, const void* gradient,
                       Dtype dtype, std::int64_t count) {
    const auto level = [&](int i) { return levels[static_cast<std::size_t>(i)]; };
    Accumulate kernel{{}, level(fold.target), kept, gradient, dtype, count};
    for (const int source : fold.sources) kernel.sources.push_back(level(source));
    return kernel;
  }
  void each_range(const auto& visit) {
    for (const void*& source : sources) visit(source, count * size_of(kept));
    visit(target, count * size_of(kept));
    visit(gradient, count * size_of(dtype));
  }
};

// Adds to kSquareLimbs numbers, see base/exact_sum.h: the same sum on every device.
struct AddSquares {
  const void* values;
  Dtype dtype;
  std::int64_t count;
  std::int64_t* limbs;

  void each_range(const auto& visit) {
    visit(values, count * size_of(dtype));
    visit(limbs, kSquareLimbs * size_of(Dtype::i64));
  }
};

// OwnKernel: updates, passes over a range of a shard, elementwise, so that any partition gives the same bits.

// `count` elements. main is of type accumulation(dtype), the gradient too, or of `dtype`; moments, as many as the
// optimizer has, of the former, or bf16 or codes if it says so. `parameter` is of type `dtype`.
struct UpdateRange {
  void* main = nullptr;  // null without main weights: see Remainder
  const void* gradient = nullptr;
  bool narrow_gradient = false;  // of type `dtype`, not accumulation(dtype)
  std::array<void*, kMaxMoments> moments{};
  void* parameter = nullptr;     // null where the main weights are the parameters themselves
  void* compensation = nullptr;  // of type `dtype`, for Remainder::kept
  Dtype dtype = Dtype::f32;
  std::int64_t count = 0;
  Remainder remainder = Remainder::main_weights;
  std::int64_t first = 0;  // index of the first element in its parameter, by which random bits are drawn
  std::array<float*, kMaxMoments> scales{};  // of the blocks of codes
  std::int64_t in_block = 0;                 // elements of the first block that lie before the range

  Dtype gradient_dtype() const { return narrow_gradient ? dtype : accumulation(dtype); }
  // Only the first bytes of moments, whose width the optimizer knows, and of scales.
  void each_range(const auto& visit) {
    visit(gradient, count * size_of(gradient_dtype()));
    visit(main, count * size_of(accumulation(dtype)));
    visit(parameter, count * size_of(dtype));
    visit(compensation, count * size_of(dtype));
    for (void*& moment : moments) visit(moment, count);
    for (float*& scale : scales) visit(scale, size_of(Dtype::f32));
  }
};

// `count` elements of the range from `begin` on. For moments of type accumulation(dtype).
inline UpdateRange part_of(const UpdateRange& range, std::int64_t begin, std::int64_t count) {
  UpdateRange part = range;
  part.count = count;
  part.first += begin;
  const auto move = [begin](auto*& array, Dtype dtype) {
    if (array != nullptr) array = at_element(array, begin, dtype);
  };
  move(part.main, accumulation(range.dtype));
  move(part.gradient, range.gradient_dtype());
  move(part.parameter, range.dtype);
  move(part.compensation, range.dtype);
  for (void*& moment : part.moments) move(moment, accumulation(range.dtype));
  return part;
}

struct UpdateFactors {
  double scale = 1;        // on the gradient: mean, clipping, loss scale
  double lr = 0;           // instead of the optimizer's
  std::int64_t step = 1;   // of this parameter, counting this update
  std::uint64_t seed = 0;  // of this parameter and step, for stochastic rounding
};

// Scales the gradient, decays, updates moments and main weights, and writes the narrower parameter. For optimizers that
// go element by element.
struct Update {
  Optimizer optimizer;
  UpdateFactors factors;
  UpdateRange range;

  void each_range(const auto& visit) { range.each_range(visit); }
};

// Reads the weights into `weights`, of type accumulation(dtype). This and the next two are for optimizers over whole
// tensors, see partition/full_tensor_owners.h.
struct ReadWeights {
  UpdateRange range;
  void* weights;

  void each_range(const auto& visit) {
    range.each_range(visit);
    visit(weights, range.count * size_of(accumulation(range.dtype)));
  }
};

// Updates the moments, and writes to `input` what the step is computed from: bf16, or of type accumulation(dtype).
struct UpdateMoments {
  Optimizer optimizer;
  UpdateFactors factors;
  UpdateRange range;
  const void* weights;  // as read, which may be where the input is written; null where the optimizer has an owner
  void* input;
  Dtype input_dtype;

  void each_range(const auto& visit) {
    range.each_range(visit);
    visit(weights, range.count * size_of(accumulation(range.dtype)));
    visit(input, range.count * size_of(input_dtype));
  }
};

// `kept` of a weight, less `size` times the step, of type accumulation(dtype).
struct ApplyStep {
  double kept, size;
  const void* step;
  UpdateFactors factors;
  UpdateRange range;

  void each_range(const auto& visit) {
    range.each_range(visit);
    visit(step, range.count * size_of(accumulation(range.dtype)));
  }
};

// OwnKernel: what is kept beside parameters, which a program may write.

// What rounding to bf16 cuts off values of f32.
struct StartCompensation {
  const void* values;
  void* compensation;
  std::int64_t count;

  void each_range(const auto& visit) {
    visit(values, count * size_of(Dtype::f32));
    visit(compensation, count * size_of(Dtype::bf16));
  }
};

// Forgets what does not belong to a value that was written, in bf16.
struct ResetCompensation {
  const void* written;
  void* compensation;
  std::int64_t count;

  void each_range(const auto& visit) {
    visit(written, count * size_of(Dtype::bf16));
    visit(compensation, count * size_of(Dtype::bf16));
  }
};

// Main weights, of f32, become what was written, of type `stored`, bf16 or f16, unless they are rounded to just that.
struct AdoptWritten {
  const void* written;
  Dtype stored;
  void* main;
  std::int64_t count;

  void each_range(const auto& visit) {
    visit(written, count * size_of(stored));
    visit(main, count * size_of(Dtype::f32));
  }
};

// OwnKernel: FP8, in blocks on wires, and tensors with one scale.

// Values of f32, bf16 or f16 in the codes of a wire, see base/codec.h; or, unless it is null, what they differ by from
// `base`, or, unless these are null, they and their errors, which become what is rounded off: base/error_feedback.h.
struct Encode {
  const void* values;
  Dtype dtype;
  std::uint8_t* codes;
  std::int64_t count;
  Wire codec;
  const void* base = nullptr;
  std::uint8_t* errors = nullptr;

  void each_range(const auto& visit) {
    visit(values, count * size_of(dtype));
    visit(codes, bytes_of_codes(codec, count));
    visit(base, count * size_of(dtype));
    visit(errors, bytes_of_codes<ErrorBlocks>(count));
  }
};

// Writes them, or `adds` them to what is there, rounded once.
struct Decode {
  const std::uint8_t* codes;
  void* values;
  Dtype dtype;
  std::int64_t count;
  Wire codec;
  bool adds = false;

  void each_range(const auto& visit) {
    visit(codes, bytes_of_codes(codec, count));
    visit(values, count * size_of(dtype));
  }
};

// `largest` and, unless it is null, `noted` grow to the largest magnitude of values of f32, bf16 or f16, NaN above all.
struct FindLargest {
  const void* values;
  Dtype dtype;
  std::int64_t count;
  float *largest, *noted;

  void each_range(const auto& visit) {
    visit(values, count * size_of(dtype));
    visit(largest, size_of(Dtype::f32));
    visit(noted, size_of(Dtype::f32));
  }
};

// Writes the scale that follows from scale->largest and `given`, see float8::scale_of, and the values, of f32, bf16 or
// f16, by it, rounded to the nearest.
struct ToFloat8 {
  Float8Format format;
  const void* values;
  Dtype dtype;
  std::int64_t count;
  float given;
  Float8Scale* scale;
  std::uint8_t* codes;

  void each_range(const auto& visit) {
    visit(values, count * size_of(dtype));
    visit(scale, std::int64_t{sizeof(Float8Scale)});
    visit(codes, count);
  }
};

// To bf16: exact, without the scale.
struct FromFloat8 {
  Float8Format format;
  const std::uint8_t* codes;
  void* values;
  std::int64_t count;

  void each_range(const auto& visit) {
    visit(codes, count);
    visit(values, count * size_of(Dtype::bf16));
  }
};

using ArrayKernel = std::variant<Fill, Convert, Add, Multiply>;
using OwnKernel = std::variant<Accumulate, AddSquares, Update, ReadWeights, UpdateMoments, ApplyStep, StartCompensation,
                               ResetCompensation, AdoptWritten, Encode, Decode, FindLargest, ToFloat8, FromFloat8>;
using Kernel = std::variant<ArrayKernel, OwnKernel>;

// On the host's memory, at once.
void run_on_host(const OwnKernel& kernel);

}  // namespace zero

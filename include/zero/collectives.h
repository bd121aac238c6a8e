// What the ranks of a world exchange besides an engine's own: tensors, numbers, bytes. No torch in this header.
//
//   const double accuracy = zero::mean(right, count, world);              // over all samples of all ranks
//   const at::Tensor all = zero::all_gather(predictions, world);          // whose numbers of rows may differ
//   zero::print0(world, "step ", step, ": ", loss);
//
// All of these are collective, but for print0: every rank of the world makes the same calls in the same order, on the
// thread that drives the world's communicator; an engine's exchanges are in a group of its own. Results have the same
// bits on every rank. Calls on tensors compare first what the ranks have: where that does not fit together, every rank
// throws the same ConfigError, which lists it, and the world can be used on. CommError where the exchange fails.
//
// A tensor of a device is brought to the host's memory and its result taken back. Results are new tensors, outside of
// autograd.
#pragma once

#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "zero/world.h"

namespace at {
class Tensor;
}

namespace zero {

enum class Reduction : std::uint8_t { sum, mean, max, min };

// Of tensors of one shape and dtype, element by element: fp64, fp32, bf16 or fp16; a sum also of integers, a maximum or
// minimum of integers and bool. Sums are added along the library's tree over ranks, bf16 and fp16 in fp32 and rounded
// once; int64 wraps around, and of other integers a sum that is no value of their dtype is a ConfigError on every rank.
// A maximum or minimum is NaN where one is.
[[nodiscard]] at::Tensor all_reduce(const at::Tensor& tensor, const World& world, Reduction how = Reduction::sum);

// The ranks' tensors in rank order, joined along the first dimension, which may differ in length and be empty: of
// N tensors without dimensions, [N]. Any real dtype.
[[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor, const World& world);

// The tensor of rank `root`, of any real dtype. Others give one of the same shape and dtype, or an undefined one, whose
// result is in the host's memory.
[[nodiscard]] at::Tensor broadcast(const at::Tensor& tensor, const World& world, int root = 0);

// Each rank's bytes, of any length, in rank order: what a program has made of an object of its own.
[[nodiscard]] std::vector<std::string> all_gather_bytes(std::string_view bytes, const World& world);
// Those of rank `root`. Throws ConfigError for no rank.
[[nodiscard]] std::string broadcast_bytes(std::string_view bytes, const World& world, int root = 0);

// Of a number of each rank.
[[nodiscard]] double sum(double value, const World& world);
[[nodiscard]] double mean(double value, const World& world);
// The sum of the ranks' totals over the sum of their counts: the mean over samples, however they are spread. NaN where
// all counts are 0.
[[nodiscard]] double mean(double total, double count, const World& world);

// Returns when every rank has called it.
void barrier(const World& world);

// Writes its arguments and the end of a line to standard output, on rank 0.
template <class... Parts>
void print0(const World& world, const Parts&... parts) {
  if (world.rank() == 0) (std::cout << ... << parts) << std::endl;
}

}  // namespace zero

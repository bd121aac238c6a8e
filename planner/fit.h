// Which plans fit, in which order, why the others do not, and how far each goes. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/price.h"

namespace planner {

// Indices of the costs that fit, those before others that round nothing, the fastest first; of those alike to three
// digits, the one that holds least.
std::vector<std::size_t> ranking(const std::vector<Cost>& costs);

// A step of as many tokens, in more and smaller micro-batches.
struct Split {
  std::int64_t batch = 1;
  int accumulate = 1;
  bool operator==(const Split&) const = default;
};
// The one with the largest micro-batches that fits; none: no other than the request's does.
std::optional<Split> split_of(const Request& request, const zero::Plan& plan);

// How far a plan goes in the request's device memory. Counts of 0: none fits.
struct Reach {
  std::int64_t largest_parameters = 0;  // of decoders of usual proportions
  std::int64_t largest_batch = 0;       // of this model
  std::int64_t longest_seq = 0;         // of this model, which has no more positions
  std::int64_t longest_seq_alone = 0;   // likewise, one in a micro-batch
  std::optional<Split> split = {};      // of a step that does not fit; none: it fits, or no other does
  int least_ranks = 0;
  std::vector<std::string> reasons = {};
};
Reach reach_of(const Request& request, const Cost& cost);

// Why it does not fit: by how many bytes, what takes most of the room, and what would help. One sentence each; empty
// where it fits.
std::vector<std::string> reasons(const Request& request, const Cost& cost, const Reach& reach);

// The largest n >= 1 with bytes(n) <= limit, to a part of `precision` of it (0: exactly); 0 where not even 1 fits.
// `bytes` does not fall; `start` is a guess.
std::int64_t largest(std::int64_t limit, const std::function<std::int64_t(std::int64_t)>& bytes, std::int64_t start,
                     double precision);

// With the request's device memory; 0 where nothing fits.
std::int64_t largest_batch(const Request& request, const Cost& cost);
// Tokens of a sequence, at most as many as the model has positions, with micro-batches of `batch`; 0 where nothing
// fits.
std::int64_t longest_seq(const Request& request, const Cost& cost, std::int64_t batch);
// Of decoders of usual proportions, to a thousandth, with the request's batch and sequence.
std::int64_t largest_parameters(const Request& request, const zero::Plan& plan);
// The fewest ranks, in hosts as large as the request's, on which the plan fits; 0 where it fits on no number of up to
// 2^17.
int least_ranks(const Request& request, const zero::Plan& plan);

}  // namespace planner

// Which plans fit, in which order, why the others do not, and how far each goes. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/price.h"

namespace planner {

// Indices of the costs that fit, the fastest first; of those alike to three digits, the one that holds least.
std::vector<std::size_t> ranking(const std::vector<Cost>& costs);

// Why it does not fit: by how many bytes, what takes most of the room, and what would help. One sentence each; empty
// where it fits.
std::vector<std::string> reasons(const Request& request, const Cost& cost);
// With the largest batch and the least ranks, as below.
std::vector<std::string> reasons(const Cost& cost, std::int64_t batch, int ranks);

// The largest n >= 1 with bytes(n) <= limit, to a part of `precision` of it (0: exactly); 0 where not even 1 fits.
// `bytes` does not fall; `start` is a guess.
std::int64_t largest(std::int64_t limit, const std::function<std::int64_t(std::int64_t)>& bytes, std::int64_t start,
                     double precision);

// With the request's device memory; 0 where nothing fits.
std::int64_t largest_batch(const Request& request, const Cost& cost);
// Of decoders of usual proportions, to a thousandth, with the request's batch and sequence.
std::int64_t largest_parameters(const Request& request, const zero::Plan& plan);
// The fewest ranks, in hosts as large as the request's, on which the plan fits; 0 where it fits on no number of up to
// 2^17.
int least_ranks(const Request& request, const zero::Plan& plan);

}  // namespace planner

#include "engine/vote.h"

#include <bit>
#include <cmath>
#include <span>

#include "comm/tree_sum.h"
#include "partition/vote_sizes.h"

namespace zero {
namespace {

// A word of the vote.
constexpr std::int64_t kOverflow = 1, kSaveEnded = 2;
constexpr int kRates = 2, kRequests = 32;  // bits from there on
static_assert(kRates + kRateBits == kRequests);

std::uint32_t rates_of(std::int64_t word) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(word) >> kRates) & ((std::uint32_t{1} << kRateBits) - 1);
}

double tree_total(const std::vector<double>& values) {
  std::vector<const void*> sources;
  for (const double& value : values) sources.push_back(&value);
  double total = 0;
  tree_sum(sources, Dtype::f64, &total, 1);
  return total;
}

}  // namespace

std::vector<std::int64_t> pack(StepSummary& summary, const Plan& plan) {
  const auto parameters = static_cast<std::int64_t>(summary.present.size());
  std::vector<std::int64_t> words(
      static_cast<std::size_t>(vote_bytes(parameters, plan.accumulate(), plan.float8()) / 8));
  auto at = words.begin();
  for (const std::int64_t limb : summary.sums.squares.limbs()) *at++ = limb;
  *at++ =
      (summary.sums.nonfinite != 0 ? kOverflow : 0) | (summary.save_ended ? kSaveEnded : 0) |
      static_cast<std::int64_t>(std::uint64_t{summary.rates} << kRates | std::uint64_t{summary.requests} << kRequests);
  for (const double loss : summary.sums.losses) *at++ = std::bit_cast<std::int64_t>(loss);
  for (std::size_t i = 0; i < summary.present.size(); ++i)
    if (summary.present[i]) at[static_cast<std::ptrdiff_t>(i / 64)] |= std::int64_t{1} << (i % 64);
  at += (parameters + 63) / 64;
  for (const double largest : summary.sums.magnitudes) *at++ = std::bit_cast<std::int64_t>(largest);
  return words;
}

StepDecision count(const std::vector<std::int64_t>& table, const Plan& plan, const MeshShape& mesh, int places,
                   std::size_t parameters) {
  const int ranks = mesh.size(Axis::data);
  const std::size_t words = table.size() / static_cast<std::size_t>(ranks * places);
  const auto accumulate = static_cast<std::size_t>(plan.accumulate());
  StepDecision decision;
  decision.save_ended = true;
  decision.present.assign(parameters, 0);
  ExactSum squares;
  std::vector<double> losses(accumulate * static_cast<std::size_t>(ranks));
  const auto vote_of = [&](int which) {
    const int place = which / ranks, rank = which % ranks;
    const auto at = static_cast<std::size_t>(place * ranks + mesh.slice_of(rank));
    return std::span<const std::int64_t>(table.data() + at * words, words);
  };
  for (int which = 0; which < ranks * places; ++which) {
    const int rank = which % ranks;
    const std::span<const std::int64_t> vote = vote_of(which);
    squares.add(vote.first(kNormLimbs));
    const std::int64_t word = vote[kNormLimbs];
    if (rates_of(word) != rates_of(vote_of(0)[kNormLimbs])) decision.other_rates = rank * places + which / ranks;
    decision.overflow = decision.overflow || (word & kOverflow) != 0;
    decision.save_ended = decision.save_ended && (word & kSaveEnded) != 0;
    decision.requests |= static_cast<std::uint32_t>(static_cast<std::uint64_t>(word) >> kRequests);
    for (std::size_t micro = 0; micro < accumulate; ++micro)
      losses[static_cast<std::size_t>(micro_batch_index(plan, ranks, rank, static_cast<int>(micro)))] =
          std::bit_cast<double>(vote[kNormLimbs + 1 + micro]);
    for (std::size_t i = 0; i < parameters; ++i)
      if ((vote[kNormLimbs + 1 + accumulate + i / 64] >> (i % 64)) & 1) decision.present[i] = 1;
    const auto largest = vote.subspan(kNormLimbs + 1 + accumulate + (parameters + 63) / 64);
    decision.largest.resize(largest.size());
    for (std::size_t i = 0; i < largest.size(); ++i)
      note_largest(decision.largest[i], std::bit_cast<double>(largest[i]));
  }
  decision.norm = std::sqrt(squares.value());
  decision.loss = tree_total(losses);
  return decision;
}

}  // namespace zero

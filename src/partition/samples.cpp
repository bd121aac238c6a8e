#include "zero/samples.h"

#include <algorithm>
#include <string>

#include "base/random.h"
#include "partition/accumulation_order.h"
#include "partition/permutation.h"
#include "zero/error.h"

namespace zero {

Samples::Samples(std::int64_t size, const MeshShape& mesh, int rank, const Plan& plan, const SampleOptions& options)
    : size_(size),
      options_(options),
      plan_(plan.on(mesh)),
      ranks_(mesh.size(Axis::data)),
      rank_(rank),
      micro_batches_(std::int64_t{ranks_} * plan.accumulate()) {
  if (size_ < 1) throw ConfigError("there are no samples: a size of " + std::to_string(size_));
  if (options_.batch < 1)
    throw ConfigError("a micro-batch of " + std::to_string(options_.batch) + " samples", "set SampleOptions::batch");
  if (steps() == 0)
    throw ConfigError(std::to_string(size_) + " samples do not fill one step of " + std::to_string(in_step()) +
                          ", and LastBatch::drop leaves them out",
                      "use LastBatch::pad or uneven, or smaller batches");
}

std::int64_t Samples::steps_from(std::int64_t sample) const {
  const std::int64_t left = size_ - sample;
  return options_.last == LastBatch::drop ? left / in_step() : (left + in_step() - 1) / in_step();
}

Samples::Step Samples::step_of(std::int64_t micro_batch) const {
  if (micro_batch < first_)
    throw StateError("micro-batch " + std::to_string(micro_batch) + " is before number " + std::to_string(first_) +
                         ", with which the samples begin",
                     "ask for engine.micro_batch()");
  const std::int64_t slot = (micro_batch - first_) % micro_batches_;
  std::int64_t step = (micro_batch - first_) / micro_batches_;
  SamplePlace begin{begin_.epoch, begin_.sample + step * in_step()};
  if (step >= steps_from(begin_.sample)) {
    step -= steps_from(begin_.sample);
    begin = {begin_.epoch + 1 + step / steps(), step % steps() * in_step()};
  }
  const std::int64_t left = size_ - begin.sample;
  return {begin, options_.last == LastBatch::uneven ? std::min(left, in_step()) : in_step(), slot};
}

std::int64_t Samples::begin_of(const Step& step, std::int64_t slot) const {
  return step.samples * slot / micro_batches_;
}

SamplePlace Samples::place(std::int64_t micro_batch) const {
  return step_of(micro_batch).begin;
}

std::vector<std::size_t> Samples::indices(std::int64_t micro_batch) const {
  const Step step = step_of(micro_batch);
  const Permutation shuffled(static_cast<std::uint64_t>(size_),
                             derived(options_.seed, static_cast<std::uint64_t>(step.begin.epoch)));
  std::vector<std::size_t> indices;
  for (std::int64_t i = begin_of(step, step.slot); i < begin_of(step, step.slot + 1); ++i) {
    const auto at = static_cast<std::uint64_t>((step.begin.sample + i) % size_);
    indices.push_back(options_.shuffle ? shuffled(at) : at);
  }
  return indices;
}

double Samples::weight(std::int64_t micro_batch) const {
  const Step step = step_of(micro_batch);
  const std::int64_t mine = begin_of(step, step.slot + 1) - begin_of(step, step.slot);
  return static_cast<double>(mine * micro_batches_) / static_cast<double>(step.samples);
}

// Within its step.
std::int64_t Samples::slot(std::int64_t k) const {
  return micro_batch_index(plan_, ranks_, rank_, static_cast<int>(k % plan_.accumulate()));
}

std::int64_t Samples::number(std::int64_t k) const {
  return first_ + k / plan_.accumulate() * micro_batches_ + slot(k);
}

std::int64_t Samples::before(std::int64_t micro_batch) const {
  return (micro_batch - first_) / micro_batches_ * plan_.accumulate();
}

void Samples::begin_at(const SamplePlace& place, std::int64_t micro_batch) {
  if (place.epoch < 0 || place.sample < 0 || place.sample >= size_)
    throw ConfigError("no epoch of " + std::to_string(size_) + " samples has sample " + std::to_string(place.sample) +
                      " of epoch " + std::to_string(place.epoch));
  const std::int64_t first = micro_batch - slot(0);
  if (first < 0)
    throw ConfigError("micro-batch " + std::to_string(micro_batch) + " is no step's first on rank " +
                      std::to_string(rank_));
  begin_ = place;
  first_ = first;
}

}  // namespace zero

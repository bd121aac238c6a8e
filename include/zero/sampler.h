// zero::Samples as a sampler of LibTorch's data loaders.
//
//   zero::DistributedSampler sampler(data.size().value(), world, plan, {.batch = 32, .seed = 1});
//   sampler.go_on(engine.micro_batch());  // after Engine::load()
//   auto loader = torch::data::make_data_loader(data, sampler, torch::data::DataLoaderOptions(32).workers(2));
//   while (sampler.samples().place(engine.micro_batch()).epoch < epochs)
//     for (auto& batch : *loader) {       // an epoch, or what is left of it
//       engine.backward(loss(batch));
//       engine.step();
//     }
//
// The loader has a copy of the sampler, which reads ahead; the one that is left tells places and weights. Its batches
// come in the order of engine.micro_batch() on this rank. Under LastBatch::uneven micro-batches without samples are
// left out, since a loader loads nothing that is empty: weight() is 0 for them.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "zero/samples.h"

namespace zero {

class DistributedSampler final : public torch::data::samplers::Sampler<> {
 public:
  // As Samples(), which see. Not collective.
  DistributedSampler(std::size_t size, const Mesh& mesh, const Plan& plan, const SampleOptions& options = {})
      : DistributedSampler(Samples(static_cast<std::int64_t>(size), mesh, plan, options)) {}
  explicit DistributedSampler(Samples samples);

  const Samples& samples() const { return samples_; }

  // The next batch is this rank's first of the step that `micro_batch`, a global number, belongs to.
  void go_on(std::int64_t micro_batch);

  // Begins the next epoch, where any of this one was taken: an epoch's order never repeats. What is left of an epoch is
  // left. Throws ConfigError for another size.
  void reset(std::optional<std::size_t> new_size = {}) override;
  // None at the end of the epoch. Throws ConfigError where `batch_size` is not SampleOptions::batch.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // Epoch and sample at which the step of the next batch begins, with size, seed and whether it shuffles. Of a sampler
  // that a loader reads ahead of the training with that is too far: there go_on() is the way.
  void save(torch::serialize::OutputArchive& archive) const override;
  // On any number of ranks, with batches of any size. Throws ConfigError where the order is another one.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::int64_t next_number() const { return samples_.number(taken_); }

  Samples samples_;
  std::int64_t taken_ = 0;  // micro-batches of this rank, in samples_' count
  std::int64_t epoch_ = 0;
  bool begun_ = false;
};

}  // namespace zero

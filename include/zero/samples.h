// Which samples of a data set are in which micro-batch.
//
//   const zero::Samples samples(data.size(), world, plan, {.batch = 32, .seed = 1});
//   while (samples.place(engine.micro_batch()).epoch < epochs) {
//     engine.backward(model->loss(data.batch(samples.indices(engine.micro_batch()))));
//     engine.step();
//   }
//
// An epoch's order depends on seed and epoch alone, and a step takes the next `batch` samples for each of its
// micro-batches, of all ranks together. So every plan, and every split of a step's micro-batches over ranks and
// accumulation, sees the same global batches, and a run that goes on from a checkpoint goes on with its data: its place
// is engine.micro_batch(). Nothing is kept for each sample.
//
// zero::DistributedSampler (zero/sampler.h) is the same for LibTorch's data loaders. No torch in this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "zero/mesh.h"
#include "zero/plan.h"

namespace at {
class Tensor;
}

namespace zero {

// What becomes of the last samples of an epoch, where they do not fill a step's micro-batches.
enum class LastBatch : std::uint8_t {
  pad,   // samples from the beginning of the epoch's order fill them
  drop,  // these samples are left out
  // They are spread over the micro-batches, some of which are smaller, or have none. The mean over the global batch is
  // right where each loss, a mean over its own samples, is multiplied by its weight():
  //
  //   const double weight = samples.weight(engine.micro_batch());
  //   engine.backward(weight == 0 ? zero::no_data() : loss() * weight);
  uneven,
};

struct SampleOptions {
  std::int64_t batch = 1;  // samples of a micro-batch
  bool shuffle = true;     // without, each epoch has 0, 1, 2, ...
  std::uint64_t seed = 0;  // the same on every rank
  LastBatch last = LastBatch::pad;
};

// Where a step begins.
struct SamplePlace {
  std::int64_t epoch = 0;
  std::int64_t sample = 0;  // of the epoch's order, those of all ranks counted
  bool operator==(const SamplePlace&) const = default;
};

// Immutable but for begin_at(). Not collective.
class Samples {
 public:
  // Of `size` samples, for an engine of this mesh and plan. Throws ConfigError for sizes that are not positive, and
  // where LastBatch::drop would leave nothing.
  Samples(std::int64_t size, const Mesh& mesh, const Plan& plan, const SampleOptions& options = {})
      : Samples(size, mesh.shape(), mesh.rank(Axis::data), plan, options) {}
  // For `rank` of the data axis.
  Samples(std::int64_t size, const MeshShape& mesh, int rank, const Plan& plan, const SampleOptions& options = {});

  std::int64_t size() const { return size_; }
  const SampleOptions& options() const { return options_; }
  // Of a whole epoch.
  std::int64_t steps() const { return steps_from(0); }

  // `micro_batch` is a global number, as Engine::micro_batch() has it. Each throws StateError for one before the place
  // at which it begins.

  // Where the step of the micro-batch begins.
  SamplePlace place(std::int64_t micro_batch) const;
  // The micro-batch's samples.
  std::vector<std::size_t> indices(std::int64_t micro_batch) const;
  // Its samples over the mean number of samples of its step's micro-batches. Not 1 under LastBatch::uneven only; 0
  // where it has none.
  double weight(std::int64_t micro_batch) const;

  // The number of micro-batch `k` of this rank, counted from 0: what engine.micro_batch() is before its backward.
  std::int64_t number(std::int64_t k) const;
  // How many micro-batches this rank has had where the step of `micro_batch` begins.
  std::int64_t before(std::int64_t micro_batch) const;

  // The step of which `micro_batch` is this rank's first begins at `place`: to go on where the size of a global batch
  // has changed. Throws ConfigError for a place that no epoch has.
  void begin_at(const SamplePlace& place, std::int64_t micro_batch);

 private:
  struct Step {
    SamplePlace begin;
    std::int64_t samples = 0;  // that it takes, none of them twice
    std::int64_t slot = 0;     // of the micro-batch that was asked for
  };
  Step step_of(std::int64_t micro_batch) const;
  std::int64_t steps_from(std::int64_t sample) const;
  // Of the step's samples, which the micro-batch `slot` begins with.
  std::int64_t begin_of(const Step& step, std::int64_t slot) const;
  std::int64_t in_step() const { return micro_batches_ * options_.batch; }
  std::int64_t slot(std::int64_t k) const;

  std::int64_t size_;
  SampleOptions options_;
  Plan plan_;  // as it is on the mesh
  int ranks_, rank_;
  std::int64_t micro_batches_;  // of a step, of all ranks
  SamplePlace begin_ = {};
  std::int64_t first_ = 0;  // the number of the micro-batch with which it begins
};

// The loss of a rank that has no data for a micro-batch: 0, and no parameter has a gradient of it.
//
//   engine.backward(zero::no_data());
//
// So the rank takes part in all that the micro-batch needs, gathers of what others use included, without computing. It
// counts as a micro-batch of the mean, whose other losses are to be weighted (Samples::weight). loss.backward() is not
// heard of it. A model whose forward exchanges something itself has to run on all ranks, on an empty batch where need
// be.
[[nodiscard]] at::Tensor no_data();

}  // namespace zero

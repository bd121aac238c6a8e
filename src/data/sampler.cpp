#include "zero/sampler.h"

#include <torch/serialize/archive.h>

#include <string>
#include <utility>

#include "zero/error.h"

namespace zero {
namespace {

std::int64_t read(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value.toInt();
}

void require_same(const std::string& what, std::int64_t there, std::int64_t here) {
  if (there != here)
    throw ConfigError(
        "a sampler was saved with " + what + " " + std::to_string(there) + ", and this one has " + std::to_string(here),
        "build it as the saved one was");
}

}  // namespace

DistributedSampler::DistributedSampler(Samples samples)
    : samples_(std::move(samples)), epoch_(samples_.place(next_number()).epoch) {}

void DistributedSampler::go_on(std::int64_t micro_batch) {
  epoch_ = samples_.place(micro_batch).epoch;
  taken_ = samples_.before(micro_batch);
  begun_ = false;
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size && static_cast<std::int64_t>(*new_size) != samples_.size())
    throw ConfigError(
        "a sampler of " + std::to_string(samples_.size()) + " samples was reset to " + std::to_string(*new_size),
        "build another one");
  if (!std::exchange(begun_, false)) return;
  ++epoch_;
  if (samples_.place(next_number()).epoch == epoch_) return;
  samples_.begin_at({epoch_, 0}, samples_.number(0));
  taken_ = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (static_cast<std::int64_t>(batch_size) != samples_.options().batch)
    throw ConfigError("a loader asks for " + std::to_string(batch_size) + " samples of a sampler of micro-batches of " +
                          std::to_string(samples_.options().batch),
                      "give SampleOptions::batch and DataLoaderOptions the same size");
  begun_ = true;
  while (samples_.place(next_number()).epoch == epoch_) {
    std::vector<std::size_t> indices = samples_.indices(samples_.number(taken_++));
    if (!indices.empty()) return indices;
  }
  return {};
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const SamplePlace place = samples_.place(next_number());
  archive.write("size", samples_.size());
  archive.write("seed", static_cast<std::int64_t>(samples_.options().seed));
  archive.write("shuffle", std::int64_t{samples_.options().shuffle});
  archive.write("epoch", place.epoch);
  archive.write("sample", place.sample);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  require_same("size", read(archive, "size"), samples_.size());
  require_same("seed", read(archive, "seed"), static_cast<std::int64_t>(samples_.options().seed));
  require_same("shuffle", read(archive, "shuffle"), std::int64_t{samples_.options().shuffle});
  samples_.begin_at({read(archive, "epoch"), read(archive, "sample")}, samples_.number(0));
  go_on(samples_.number(0));
}

}  // namespace zero

// What a rank can do on its device while all ranks of its world do it, each measurement by itself: seconds, bytes and
// floating-point operations a second. Of the slowest rank, and the same on all; every function is collective.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "planner/profile.h"
#include "zero/world.h"

namespace cli {

// In the middle of several rounds that all ranks begin together, each after what comes `before`.
double timed(
    const zero::World& world, const std::function<void()>& work, const std::function<void()>& before = [] {});

class Rates {
 public:
  // On a device that is not the host.
  Rates(const zero::World& world, c10::Device where);

  // Bytes that a rank may have there, among those that share it.
  std::int64_t memory() const { return memory_; }
  // What a copy within the memory reads and writes.
  double copies() const;
  // Between it and pinned memory of the host, one way and the other.
  double from_host() const;
  double to_host() const;
  // What an update of fp32 by AdamW reads and writes.
  double updates() const;
  // The same in the host's memory.
  double updates_on_host() const;
  // What a rank receives from the others in a step, and what any collective takes at least. 0 where there are none.
  double collectives() const;
  double collective_seconds() const;
  // By large and thin products, long attention, large sums, and chains of small operators. Not by whole steps, of which
  // the host would have to be as fast as the device.
  planner::Pace pace(zero::Precision precision) const;

 private:
  struct Work {
    std::function<void()> run;
    std::function<void()> before = [] {};
  };
  // Work of a size, for which it has allocated what it needs.
  using Make = std::function<Work(std::int64_t size)>;
  struct Timed {
    std::int64_t size;
    double seconds;
  };
  struct Exchanged {
    double bytes, calls, seconds;
  };

  void synchronize() const;
  double seconds_of(const Work& work) const;
  // From `least` on it is doubled until it takes long enough to be timed, or would be more than `most`.
  Timed sized(std::int64_t least, std::int64_t most, const Make& make) const;
  double between(bool to_host) const;
  double updates_at(c10::Device device) const;
  // What ranks exchange in a step of so many parameters, beyond what one takes alone.
  Exchanged exchanged(std::int64_t parameters) const;
  double matrix_flops(const at::TensorOptions& options) const;
  double matrix_bandwidth(const at::TensorOptions& options, double flops) const;
  double attention_flops(const at::TensorOptions& options) const;
  double sweep_bandwidth(const at::TensorOptions& options) const;
  double operator_seconds(const at::TensorOptions& options) const;

  const zero::World& world_;
  c10::Device where_;
  std::int64_t memory_;
  std::int64_t most_elements_;  // of which four arrays of fp32 take a quarter of the memory at most
  std::int64_t widest_;         // rows of a square of them
};

}  // namespace cli

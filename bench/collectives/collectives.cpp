// Collectives of this library, of Gloo as LibTorch's c10d has it, and plain copies, timed one by one. A
// rank of a job; run.py starts the jobs and makes the table.
//
//   zero launch -n 4 --no-prefix collectives [zero | c10d | copy]
#include <ATen/ops/from_blob.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "bench/collectives/table.h"
#include "comm/launcher_env.h"
#include "comm/torch/rendezvous.h"
#include "device/torch/dtypes.h"
#include "zero/world.h"

namespace {

using bench::Buffers;
using bench::Case;
using bench::Operation;
using bench::Work;

// ZERO_TRANSPORT says by what.
class Ours : public bench::Group {
 public:
  int rank() const override { return ranks().rank(); }
  int size() const override { return ranks().size(); }
  void barrier() override { ranks().barrier().wait(); }
  std::vector<double> slowest(std::vector<double> seconds) override;
  std::vector<Case> cases() const override;
  zero::Dtype sum_dtype(zero::Dtype dtype) const override { return zero::accumulation(dtype); }
  Buffers buffers(const Case& c) override;
  Work work(const Case& c, const Buffers& buffers) override;

 protected:
  std::shared_ptr<void> memory(std::int64_t count, zero::Dtype dtype) override;

 private:
  const zero::Communicator& ranks() const { return world_.communicator(); }

  zero::World world_ = zero::init();
};

std::vector<double> Ours::slowest(std::vector<double> seconds) {
  const auto count = static_cast<std::int64_t>(seconds.size());
  std::vector<double> all(seconds.size() * static_cast<std::size_t>(size()));
  ranks().all_gather({seconds.data(), count, zero::Dtype::f64}, {all.data(), count * size(), zero::Dtype::f64}).wait();
  for (std::size_t i = 0; i < all.size(); ++i) {
    double& slowest = seconds[i % seconds.size()];
    slowest = std::max(slowest, all[i]);
  }
  return seconds;
}

std::vector<Case> Ours::cases() const {
  std::vector<Case> cases = Group::cases();
  for (const Case& c : bench::cases_of({Operation::resident_gather}, {zero::Dtype::f32})) cases.push_back(c);
  return cases;
}

std::shared_ptr<void> Ours::memory(std::int64_t count, zero::Dtype dtype) {
  const auto own = ranks().own_memory(count * zero::size_of(dtype));
  return own ? own : Group::memory(count, dtype);
}

Buffers Ours::buffers(const Case& c) {
  if (c.operation != Operation::resident_gather) return Group::buffers(c);
  const std::shared_ptr<void> whole = ranks().common_memory(c.bytes);
  if (!whole) return {};
  return {{whole, static_cast<char*>(whole.get()) + rank() * (c.bytes / size())}, whole};
}

Work Ours::work(const Case& c, const Buffers& buffers) {
  const zero::View input{buffers.input.get(), input_count(c), c.dtype};
  const zero::View output{buffers.output.get(), output_count(c), output_dtype(c)};
  switch (c.operation) {
    case Operation::reduce_scatter: return [=, this] { ranks().reduce_scatter(input, output).wait(); };
    case Operation::all_reduce: return [=, this] { ranks().all_reduce(output).wait(); };
    default: return [=, this] { ranks().all_gather(input, output).wait(); };
  }
}

// Private memory, as many copies at once as there are ranks.
class Copies : public Ours {
 public:
  std::vector<Case> cases() const override { return {{Operation::copy, zero::Dtype::f32, 64 << 20}}; }
  Work work(const Case& c, const Buffers& buffers) override {
    return [=] { std::memcpy(buffers.output.get(), buffers.input.get(), static_cast<std::size_t>(c.bytes)); };
  }

 protected:
  std::shared_ptr<void> memory(std::int64_t count, zero::Dtype dtype) override { return Group::memory(count, dtype); }
};

class Gloo : public bench::Group {
 public:
  int rank() const override { return env_.rank; }
  int size() const override { return env_.size; }
  void barrier() override { group_.barrier()->wait(); }
  std::vector<double> slowest(std::vector<double> seconds) override;
  Work work(const Case& c, const Buffers& buffers) override;

 private:
  static c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> options() {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(5));
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
    return options;
  }
  static at::Tensor tensor(void* data, std::int64_t count, zero::Dtype dtype) {
    return at::from_blob(data, {count}, at::TensorOptions(zero::scalar_type(dtype)));
  }

  zero::LauncherEnv env_ =
      zero::read_launcher_env([](const char* variable) -> const char* { return std::getenv(variable); });
  zero::Rendezvous meeting_{env_, zero::InitOptions{}};
  c10d::ProcessGroupGloo group_{meeting_.store(), env_.rank, env_.size, options()};
};

std::vector<double> Gloo::slowest(std::vector<double> seconds) {
  std::vector<at::Tensor> values{tensor(seconds.data(), static_cast<std::int64_t>(seconds.size()), zero::Dtype::f64)};
  c10d::AllreduceOptions largest;
  largest.reduceOp = c10d::ReduceOp::MAX;
  group_.allreduce(values, largest)->wait();
  return seconds;
}

Work Gloo::work(const Case& c, const Buffers& buffers) {
  at::Tensor input = tensor(buffers.input.get(), input_count(c), c.dtype);
  at::Tensor output = tensor(buffers.output.get(), output_count(c), output_dtype(c));
  std::vector<at::Tensor> in_place{output};
  switch (c.operation) {
    case Operation::reduce_scatter: return [=, this]() mutable { group_._reduce_scatter_base(output, input)->wait(); };
    case Operation::all_reduce: return [=, this]() mutable { group_.allreduce(in_place)->wait(); };
    default: return [=, this]() mutable { group_._allgather_base(output, input)->wait(); };
  }
}

std::unique_ptr<bench::Group> contender(const std::string& name) {
  if (name == "zero") return std::make_unique<Ours>();
  if (name == "copy") return std::make_unique<Copies>();
  if (name == "c10d") return std::make_unique<Gloo>();
  throw std::runtime_error("collectives: zero, c10d or copy, not \"" + name + "\"");
}

}  // namespace

int main(int argc, char** argv) {
  return bench::guarded([&] { bench::fill_table(*contender(argc > 1 ? argv[1] : "zero")); });
}

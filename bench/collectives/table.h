// The table that every contender fills: which operations at which sizes, how they are timed, and a line
// of JSON for each row. No torch, so that the MPI program can use it.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>

#include "base/half.h"
#include "bench/timing.h"
#include "zero/dtype.h"

namespace bench {

enum class Operation {
  all_gather,
  reduce_scatter,
  all_reduce,       // in place, on the output
  resident_gather,  // all_gather into memory that all ranks share, each from its slot there
  copy,             // every rank copies private memory: what the machine can do
};

struct Case {
  Operation operation;
  zero::Dtype dtype;
  std::int64_t bytes;  // of the whole, on one rank

  std::int64_t count() const { return bytes / zero::size_of(dtype); }
};

struct Buffers {
  std::shared_ptr<void> input, output;
};
using Work = std::function<void()>;

// A contender's ranks.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual void barrier() = 0;
  // For each element the largest of any rank's, on rank 0 at least.
  virtual std::vector<double> slowest(std::vector<double> seconds) = 0;
  virtual std::vector<Case> cases() const;
  // Of what reduce_scatter writes when it reads `dtype`.
  virtual zero::Dtype sum_dtype(zero::Dtype dtype) const { return dtype; }
  // No output: the contender cannot do the case.
  virtual Buffers buffers(const Case& c) {
    return {memory(input_count(c), c.dtype), memory(output_count(c), output_dtype(c))};
  }
  // The operation, ready to be carried out again and again; `buffers` outlive it.
  virtual Work work(const Case& c, const Buffers& buffers) = 0;

  std::int64_t input_count(const Case& c) const { return gathers(c) ? c.count() / size() : c.count(); }
  std::int64_t output_count(const Case& c) const {
    return c.operation == Operation::reduce_scatter ? c.count() / size() : c.count();
  }
  zero::Dtype output_dtype(const Case& c) const {
    return c.operation == Operation::reduce_scatter ? sum_dtype(c.dtype) : c.dtype;
  }

 protected:
  virtual std::shared_ptr<void> memory(std::int64_t count, zero::Dtype dtype);
  static bool gathers(const Case& c) {
    return c.operation == Operation::all_gather || c.operation == Operation::resident_gather;
  }
};

inline std::shared_ptr<void> Group::memory(std::int64_t count, zero::Dtype dtype) {
  constexpr std::size_t page = 4096;
  const auto bytes = static_cast<std::size_t>(count * zero::size_of(dtype));
  return {std::aligned_alloc(page, (bytes + page - 1) / page * page), std::free};
}

inline constexpr std::int64_t kSizes[] = {4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20};

inline std::vector<Case> cases_of(std::initializer_list<Operation> operations,
                                  std::initializer_list<zero::Dtype> dtypes) {
  std::vector<Case> cases;
  for (const Operation operation : operations)
    for (const zero::Dtype dtype : dtypes)
      for (const std::int64_t bytes : kSizes) cases.push_back({operation, dtype, bytes});
  return cases;
}

inline std::vector<Case> Group::cases() const {
  return cases_of({Operation::all_gather, Operation::reduce_scatter, Operation::all_reduce},
                  {zero::Dtype::f32, zero::Dtype::bf16});
}

inline const char* name(Operation operation) {
  switch (operation) {
    case Operation::all_gather: return "all_gather";
    case Operation::reduce_scatter: return "reduce_scatter";
    case Operation::all_reduce: return "all_reduce";
    case Operation::resident_gather: return "resident_gather";
    case Operation::copy: return "copy";
  }
  return "?";
}

inline void fill(void* data, std::int64_t count, zero::Dtype dtype, float value) {
  if (dtype == zero::Dtype::f32) {
    std::fill_n(static_cast<float*>(data), count, value);
  } else {
    zero::Bf16 rounded;
    zero::narrow(value, rounded);
    std::fill_n(static_cast<zero::Bf16*>(data), count, rounded);
  }
}

inline bool holds(const void* data, std::int64_t count, zero::Dtype dtype, float value) {
  const auto equal = [&](auto element) { return zero::widen(element) == value; };
  if (dtype == zero::Dtype::f32)
    return std::all_of(static_cast<const float*>(data), static_cast<const float*>(data) + count, equal);
  return std::all_of(static_cast<const zero::Bf16*>(data), static_cast<const zero::Bf16*>(data) + count, equal);
}

// Carries the operation out once, on ones, so that nobody is fast by doing less.
inline void verify(Group& group, const Case& c, const Buffers& buffers, const Work& work) {
  const bool in_place = c.operation == Operation::all_reduce;
  const bool sums = in_place || c.operation == Operation::reduce_scatter;
  fill(buffers.output.get(), group.output_count(c), group.output_dtype(c), in_place ? 1.0f : 0.0f);
  group.barrier();
  fill(buffers.input.get(), group.input_count(c), c.dtype, 1);
  group.barrier();
  work();
  group.barrier();
  const float expected = sums ? static_cast<float>(group.size()) : 1.0f;
  if (!holds(buffers.output.get(), group.output_count(c), group.output_dtype(c), expected))
    throw std::runtime_error(std::string(name(c.operation)) + " gave a wrong result");
  if (in_place) fill(buffers.output.get(), group.output_count(c), c.dtype, 0);
}

// Median over the repetitions of the slowest rank's time, from a barrier to the end on that rank.
inline double seconds_of(Group& group, const Case& c, const Work& work) {
  const int repetitions = c.bytes >= 64 << 20 ? 7 : c.bytes >= 1 << 20 ? 21 : 101;
  std::vector<double> seconds;
  for (int i = -3; i < repetitions; ++i) {
    group.barrier();
    const auto start = Clock::now();
    work();
    if (i >= 0) seconds.push_back(seconds_since(start));
  }
  return median(group.slowest(std::move(seconds)));
}

inline void fill_table(Group& group) {
  for (const Case& c : group.cases()) {
    const Buffers buffers = group.buffers(c);
    if (!buffers.output) continue;
    const Work work = group.work(c, buffers);
    verify(group, c, buffers, work);
    const double seconds = seconds_of(group, c, work);
    if (group.rank() != 0) continue;
    std::printf("{\"operation\": \"%s\", \"dtype\": \"%s\", \"bytes\": %lld, \"seconds\": %.9f}\n", name(c.operation),
                std::string(zero::name(c.dtype)).c_str(), static_cast<long long>(c.bytes), seconds);
    std::fflush(stdout);
  }
}

// The body of a contender's main().
template <class Body>
int guarded(Body body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace bench

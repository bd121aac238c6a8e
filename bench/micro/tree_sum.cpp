// The sum across ranks as one rank computes it: bytes read and written a second, by dtype and number of
// sources, beside a triad. Arrays larger than the caches; one thread.
//
//   tree_sum [elements] [rounds]
#include "comm/tree_sum.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench/timing.h"

namespace {

constexpr std::size_t kMostSources = 8;
constexpr zero::Dtype kDtypes[] = {zero::Dtype::f32, zero::Dtype::f64, zero::Dtype::bf16,
                                   zero::Dtype::f16, zero::Dtype::i64, zero::Dtype::i32};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

// Zeros, in pages of its own.
Memory memory(std::int64_t bytes) {
  const std::size_t pages = (static_cast<std::size_t>(bytes) + 4095) / 4096;
  Memory result(std::aligned_alloc(4096, pages * 4096));
  std::memset(result.get(), 0, pages * 4096);
  return result;
}

struct Case {
  zero::Dtype dtype;
  std::size_t sources;
  bool rounded;

  std::string name() const {
    return std::string(zero::name(dtype)) + (rounded ? " rounded" : "") + " x " + std::to_string(sources);
  }
  // Read and written, an element.
  std::int64_t bytes() const {
    const auto out = rounded ? dtype : zero::accumulation(dtype);
    return static_cast<std::int64_t>(sources) * zero::size_of(dtype) + zero::size_of(out);
  }
};

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const auto dtype : kDtypes)
    for (const std::size_t sources : {2, 4, 8}) {
      result.push_back({dtype, sources, false});
      if (zero::accumulation(dtype) != dtype) result.push_back({dtype, sources, true});
    }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t n = argc > 1 ? std::atoll(argv[1]) : 16 << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 7;
  std::vector<Memory> arrays;
  for (std::size_t i = 0; i < kMostSources; ++i) arrays.push_back(memory(8 * n));
  const Memory out = memory(8 * n);
  std::vector<const void*> sources;
  for (const Memory& array : arrays) sources.push_back(array.get());

  bench::Contest contest;
  const auto triad = contest.add("triad fp32", [&] {
    bench::triad(static_cast<float*>(out.get()), static_cast<const float*>(sources[0]),
                 static_cast<const float*>(sources[1]), 0.5f, n);
  });
  const auto all = cases();
  for (const Case& c : all)
    contest.add(c.name(), [&, c] {
      const std::span<const void* const> some(sources.data(), c.sources);
      (c.rounded ? zero::tree_sum_rounded : zero::tree_sum)(some, c.dtype, out.get(), n);
    });
  contest.run(rounds, 1);

  const double triad_rate = 12e-9 * static_cast<double>(n) / contest.seconds(triad);
  std::printf("%lld elements, medians of %d rounds\n\n| sum | GB/s | of the triad |\n|---|---|---|\n",
              static_cast<long long>(n), rounds);
  std::printf("| triad fp32 | %.1f | 1.00 |\n", triad_rate);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double rate = 1e-9 * static_cast<double>(all[i].bytes() * n) / contest.seconds(i + 1);
    const double share = contest.ratio({triad}, {i + 1}) * static_cast<double>(all[i].bytes()) / 12;
    std::printf("| %s | %.1f | %.2f |\n", all[i].name().c_str(), rate, share);
  }
}

// Ranks as threads over any backend, and arrays to send about.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/backend.h"
#include "comm/decorators.h"
#include "comm/hosts.h"
#include "comm_reference.h"
#include "zero/error.h"

namespace zero {

inline void PrintTo(const Moved& moved, std::ostream* out) {
  *out << moved.bytes << " bytes, " << moved.across_hosts << " across hosts, " << moved.in_place << " in place";
}

}  // namespace zero

namespace zero::test {

using Timeout = std::chrono::milliseconds;
inline constexpr Timeout kNoHang = std::chrono::hours(1);  // only a hang meets it
using MakeRank = std::function<std::shared_ptr<CommunicatorImpl>(int rank)>;

struct Backend {
  const char* name;
  MakeRank (*group)(int size, Timeout timeout);
  Timeout patience;            // in which the ranks of a quick machine join
  std::int64_t several;        // elements of a slice that travels in several chunks
  std::int64_t exchanged = 0;  // bytes of an all_reduce up to which every rank gets everybody's
  int ranks_per_host = 0;      // consecutive ones, in the last host what is left; 0: all on one
};

// Of consecutive ranks; 0: all on one host.
inline HostMap host_map(int size, int ranks_per_host) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < size && ranks_per_host > 0; ++rank) hosts.push_back(std::to_string(rank / ranks_per_host));
  return HostMap(hosts);
}

inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name;
}

class CommunicatorSuite : public testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  using Body = std::function<void(const Communicator&)>;
  using Wrap = std::function<std::shared_ptr<CommunicatorImpl>(std::shared_ptr<CommunicatorImpl>)>;

  int size() const { return std::get<1>(GetParam()); }
  std::int64_t several() const { return std::get<0>(GetParam()).several; }
  std::int64_t exchanged() const { return std::get<0>(GetParam()).exchanged; }
  int host(int rank) const {
    const int here = std::get<0>(GetParam()).ranks_per_host;
    return here == 0 ? 0 : rank / here;
  }

  // Runs `body` once a rank, each a thread; the text of what each rank threw.
  std::vector<std::string> errors(const Body& body, const Wrap& wrap = {}, Timeout timeout = kNoHang) {
    std::vector<std::string> texts(static_cast<std::size_t>(size()));
    const MakeRank make = std::get<0>(GetParam()).group(size(), timeout);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          auto impl = make(rank);
          body(Communicator(wrap ? wrap(std::move(impl)) : std::move(impl)));
        } catch (const Error& error) {
          texts[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    for (auto& thread : threads) thread.join();
    return texts;
  }

  void run(const Body& body, const Wrap& wrap = {}) {
    for (const std::string& text : errors(body, wrap)) EXPECT_EQ(text, "");
  }

  std::vector<Array> every_rank(Dtype dtype, std::int64_t count) const {
    std::vector<Array> arrays;
    for (int r = 0; r < size(); ++r) arrays.push_back(random_array(dtype, count, r));
    return arrays;
  }

  // The ranks make different calls; each must be told what each called.
  void expect_divergence(const std::function<void(const Communicator&, bool odd)>& call, const std::string& even_text,
                         const std::string& odd_text) {
    if (size() == 1) return;
    const auto texts = errors([&](const Communicator& c) { call(c, c.rank() % 2 == 1); }, checked);
    for (int r = 0; r < size(); ++r) {
      const std::string& text = texts[static_cast<std::size_t>(r)];
      EXPECT_NE(text.find("rank " + std::to_string(r) + ": the ranks called different"), text.npos) << text;
      for (int p = 0; p < size(); ++p)
        EXPECT_NE(text.find("rank " + std::to_string(p) + ": " + (p % 2 ? odd_text : even_text)), text.npos) << text;
    }
  }
};

inline Array concatenated(const std::vector<Array>& arrays) {
  Array whole(arrays[0].dtype, arrays[0].count * static_cast<std::int64_t>(arrays.size()));
  whole.bytes.clear();
  for (const Array& array : arrays) whole.bytes.insert(whole.bytes.end(), array.bytes.begin(), array.bytes.end());
  return whole;
}

inline Array part(Array whole, std::int64_t begin, std::int64_t count) {
  Array result(whole.dtype, count);
  if (count > 0) std::memcpy(result.bytes.data(), whole.slice(begin, count).data, result.bytes.size());
  return result;
}

}  // namespace zero::test

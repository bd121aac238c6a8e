// What every backend must do. One test file of a program includes this and instantiates CommunicatorSuite with
// its backends. Sums are compared with a reference by bits, so backends that pass agree by bits.
#pragma once

#include "base/sum_tree.h"
#include "comm_fixture.h"
#include "partition/wire.h"

namespace zero::test {

inline constexpr std::int64_t kCounts[] = {0, 1, 7, 1000};

TEST_P(CommunicatorSuite, AllGather) {
  run([&](const Communicator& c) {
    for (Dtype dtype : kDtypes)
      for (std::int64_t count : kCounts) {
        const auto all = every_rank(dtype, count);
        Array shard = all[static_cast<std::size_t>(c.rank())];
        Array whole(dtype, count * size());
        c.all_gather(shard.view(), whole.view()).wait();
        EXPECT_EQ(whole, concatenated(all)) << count << " " << name(dtype);
      }
  });
}

TEST_P(CommunicatorSuite, AllGatherFromItsOwnSlot) {
  run([&](const Communicator& c) {
    for (std::int64_t count : {std::int64_t{7}, several()}) {
      const auto all = every_rank(Dtype::bf16, count);
      Array whole(Dtype::bf16, count * size());
      const View slot = whole.slice(c.rank() * count, count);
      std::memcpy(slot.data, all[static_cast<std::size_t>(c.rank())].bytes.data(),
                  static_cast<std::size_t>(slot.bytes()));
      c.all_gather(slot, whole.view()).wait();
      EXPECT_EQ(whole, concatenated(all));
    }
  });
}

TEST_P(CommunicatorSuite, ReduceScatter) {
  run([&](const Communicator& c) {
    for (Dtype dtype : kSummed)
      for (std::int64_t count : kCounts) {
        const auto all = every_rank(dtype, count * size());
        Array whole = all[static_cast<std::size_t>(c.rank())];
        Array shard(accumulation(dtype), count);
        c.reduce_scatter(whole.view(), shard.view()).wait();
        EXPECT_EQ(shard, part(reference_sum(all), c.rank() * count, count)) << count << " " << name(dtype);
        EXPECT_EQ(whole, all[static_cast<std::size_t>(c.rank())]);
      }
  });
}

TEST_P(CommunicatorSuite, ReduceScatterIntoItsOwnSlotInChunks) {
  for (std::int64_t count : {std::int64_t{7}, several()}) {
    const auto all = every_rank(Dtype::f32, count * size());
    const Array expected = reference_sum(all);
    run([&](const Communicator& c) {
      Array whole = all[static_cast<std::size_t>(c.rank())];
      c.reduce_scatter(whole.view(), whole.slice(c.rank() * count, count)).wait();
      EXPECT_EQ(part(whole, c.rank() * count, count), part(expected, c.rank() * count, count));
    });
  }
}

// Ranks bring sums of leaves, of several apiece or of a part of a sum; each is told what it moved.
TEST_P(CommunicatorSuite, ReduceScatterAlongOneTree) {
  for (const auto& [first, apiece, behind] :
       {std::array{0, 3, 0}, std::array{3, 1, 5}, std::array{2, 5, 1}, std::array{0, 2, 7}})
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{7}, several()}) {
      const std::int64_t n = size(), all = first + n * apiece + behind;
      const Leaves leaves{first, apiece, all};
      const GroupSum sum(leaves, size());
      const SumParts parts(sum);
      std::vector<Array> numbers;
      for (std::int64_t leaf = 0; leaf < all; ++leaf)
        numbers.push_back(random_array(Dtype::f32, count * n, static_cast<int>(leaf)));
      const auto sums_of = [&](const std::vector<LeafRange>& nodes) {
        std::vector<Array> sums;
        for (const LeafRange& node : nodes)
          sums.push_back(reference_sum({numbers.begin() + node.begin, numbers.begin() + node.end}));
        return sums;
      };
      const std::vector<Array> expected = sums_of(parts.sums);
      run([&](const Communicator& c) {
        Array whole(Dtype::f32, sum.most() * n * count), shard(Dtype::f32, std::ssize(expected) * count);
        const Array brought = concatenated(sums_of(largest_nodes(sum.leaves_of(c.rank()), all)));
        if (!brought.bytes.empty()) std::memcpy(whole.bytes.data(), brought.bytes.data(), brought.bytes.size());
        const Moved moved = completed(c.reduce_scatter(whole.view(), shard.view(), leaves));
        EXPECT_EQ(moved,
                  moved_by(Collective::reduce_scatter, size(), c.topology(), 4 * count, 4 * count, leaves, c.rank()));
        for (std::int64_t i = 0; i < std::ssize(expected); ++i)
          EXPECT_TRUE(part(shard, i * count, count) ==
                      part(expected[static_cast<std::size_t>(i)], c.rank() * count, count))
              << first << " " << apiece << " " << behind << ": sum " << i << " of " << count;
      });
    }
}

TEST_P(CommunicatorSuite, AllReduceOfAnyCount) {
  run([&](const Communicator& c) {
    for (Dtype dtype : kSummed)
      for (std::int64_t count : kCounts) {
        const auto all = every_rank(dtype, count);
        Array values = all[static_cast<std::size_t>(c.rank())];
        c.all_reduce(values.view()).wait();
        EXPECT_EQ(values, reference_rounded_sum(all)) << count << " " << name(dtype);
      }
  });
}

TEST_P(CommunicatorSuite, AllReduceInChunks) {
  for (Dtype dtype : {Dtype::bf16, Dtype::f64}) {
    const auto all = every_rank(dtype, several());
    const Array expected = reference_rounded_sum(all);
    run([&](const Communicator& c) {
      Array values = all[static_cast<std::size_t>(c.rank())];
      c.all_reduce(values.view()).wait();
      EXPECT_EQ(values, expected) << name(dtype);
    });
  }
}

TEST_P(CommunicatorSuite, AllToAll) {
  run([&](const Communicator& c) {
    for (Dtype dtype : kDtypes)
      for (std::int64_t count : kCounts) {
        auto all = every_rank(dtype, count * size());
        std::vector<Array> expected;
        for (Array& input : all) expected.push_back(part(input, c.rank() * count, count));
        Array output(dtype, count * size());
        c.all_to_all(all[static_cast<std::size_t>(c.rank())].view(), output.view()).wait();
        EXPECT_EQ(output, concatenated(expected));
      }
  });
}

TEST_P(CommunicatorSuite, BroadcastFromEachRoot) {
  run([&](const Communicator& c) {
    for (int root = 0; root < size(); ++root)
      for (std::int64_t count : kCounts) {
        const auto all = every_rank(Dtype::i32, count);
        Array values = all[static_cast<std::size_t>(c.rank())];
        c.broadcast(values.view(), root).wait();
        EXPECT_EQ(values, all[static_cast<std::size_t>(root)]);
      }
  });
}

TEST_P(CommunicatorSuite, BarrierWaitsForEveryRank) {
  std::atomic<int> arrived{0};
  run([&](const Communicator& c) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      c.barrier().wait();
      EXPECT_GE(arrived.load(), round * size());
    }
  });
}

TEST_P(CommunicatorSuite, ManyOperationsUnderWay) {
  run([&](const Communicator& c) {
    std::vector<std::vector<Array>> inputs;
    std::vector<Array> outputs;
    std::vector<Pending> pending;
    for (int i = 0; i < 50; ++i) inputs.push_back(every_rank(Dtype::f32, (i + 1) * size()));
    for (auto& input : inputs) outputs.emplace_back(Dtype::f32, input[0].count / size());
    for (std::size_t i = 0; i < inputs.size(); ++i)
      pending.push_back(c.reduce_scatter(inputs[i][static_cast<std::size_t>(c.rank())].view(), outputs[i].view()));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      pending[i].wait();
      EXPECT_EQ(outputs[i], part(reference_sum(inputs[i]), c.rank() * outputs[i].count, outputs[i].count));
    }
  });
}

TEST_P(CommunicatorSuite, SplitsByColorInTheOrderOfTheKeys) {
  run([&](const Communicator& c) {
    const int color = c.rank() % 2;
    const Communicator group = c.split(color, -c.rank());
    std::vector<std::int64_t> members;
    for (int r = size() - 1; r >= 0; --r)
      if (r % 2 == color) members.push_back(r);
    ASSERT_EQ(group.size(), static_cast<int>(members.size()));
    EXPECT_EQ(members[static_cast<std::size_t>(group.rank())], c.rank());
    std::vector<std::int64_t> gathered(members.size());
    const std::int64_t own = c.rank();
    group.all_gather({&own, 1, Dtype::i64}, {gathered.data(), group.size(), Dtype::i64}).wait();
    EXPECT_EQ(gathered, members);
    c.barrier().wait();
  });
}

TEST_P(CommunicatorSuite, MetersWhatEachRankReceives) {
  const auto meter = std::make_shared<TrafficMeter>();
  const std::int64_t n = size();
  const std::int64_t large = 100'001;
  std::atomic<std::int64_t> reduced{0};
  run(
      [&](const Communicator& c) {
        Array small(Dtype::f32, 6 * n), shard(Dtype::f32, 6), output(Dtype::f32, 6 * n), big(Dtype::bf16, large);
        c.all_gather(shard.view(), small.view()).wait();
        c.reduce_scatter(small.view(), shard.view()).wait();
        reduced += moved_by(Collective::reduce_scatter, size(), c.topology(), 24, 24, {}, c.rank()).bytes;
        c.all_reduce(shard.view()).wait();
        c.all_reduce(big.view()).wait();
        c.all_to_all(small.view(), output.view()).wait();
        c.broadcast(shard.view(), 0).wait();
        c.barrier().wait();
        c.split(0, 0).barrier().wait();
      },
      [&](std::shared_ptr<CommunicatorImpl> inner) { return metered(std::move(inner), meter); });
  Traffic expected;
  expected[Collective::all_gather] = {.calls = n, .bytes = n * (n - 1) * 24};
  expected[Collective::reduce_scatter] = {.calls = n, .bytes = reduced};
  const std::int64_t few = exchanged() < 24 ? 2 * (n - 1) * 24 : n * (n - 1) * 24;
  expected[Collective::all_reduce] = {.calls = 2 * n, .bytes = few + 2 * (n - 1) * large * 2};
  expected[Collective::all_to_all] = {.calls = n, .bytes = n * (n - 1) * 24};
  expected[Collective::broadcast] = {.calls = n, .bytes = n == 1 ? 0 : n * 24};
  expected[Collective::barrier] = {.calls = 2 * n, .bytes = 0};
  const Traffic counted = meter->snapshot();
  for (std::size_t i = 0; i < expected.entries.size(); ++i) {
    EXPECT_EQ(counted.entries[i].calls, expected.entries[i].calls) << name(static_cast<Collective>(i));
    EXPECT_EQ(counted.entries[i].bytes, expected.entries[i].bytes) << name(static_cast<Collective>(i));
    EXPECT_EQ(counted.entries[i].in_place, 0) << name(static_cast<Collective>(i));
  }
  meter->reset();
  EXPECT_EQ(meter->snapshot(), Traffic{});
}

// Slices of odd and of no length, from memory of their own and from their slot, at once and in chunks.
TEST_P(CommunicatorSuite, SaysWhatEachCallMoved) {
  run([&](const Communicator& c) {
    const std::int64_t n = size();
    const auto predicted = [&](Collective collective, std::int64_t bytes, std::int64_t sum) {
      return moved_by(collective, size(), c.topology(), bytes, sum);
    };
    for (const Dtype dtype : {Dtype::bf16, Dtype::f32})
      for (const std::int64_t count :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, std::int64_t{1000}, several()}) {
        SCOPED_TRACE(std::to_string(count) + " " + std::string(name(dtype)));
        Array shard(dtype, count), whole(dtype, count * n), other(dtype, count * n), sum(accumulation(dtype), count);
        const std::int64_t bytes = shard.view().bytes(), wide = sum.view().bytes();
        const Moved gathered = predicted(Collective::all_gather, bytes, bytes);
        EXPECT_EQ(gathered.bytes, (n - 1) * bytes);
        EXPECT_EQ(completed(c.all_gather(shard.view(), whole.view())), gathered);
        EXPECT_EQ(completed(c.all_gather(whole.slice(c.rank() * count, count), whole.view())), gathered);
        EXPECT_EQ(completed(c.reduce_scatter(whole.view(), sum.view())),
                  predicted(Collective::reduce_scatter, bytes, wide));
        std::int64_t apart = 0;
        for (int r = 0; r < size(); ++r) apart += host(r) == host(c.rank()) ? 0 : 1;
        EXPECT_EQ(completed(c.all_to_all(whole.view(), other.view())), (Moved{(n - 1) * bytes, apart * bytes}));
        const int root = size() - 1;
        EXPECT_EQ(completed(c.broadcast(shard.view(), root)),
                  (Moved{n == 1 ? 0 : bytes, host(root) == host(c.rank()) ? 0 : bytes}));
        EXPECT_EQ(completed(c.barrier()), Moved{});
      }
  });
}

// By a reduction and a gather each value comes twice over all ranks, from each but one; from other hosts as the slices
// lie.
TEST_P(CommunicatorSuite, SaysWhatAnAllReduceMoved) {
  for (const std::int64_t count :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, std::int64_t{50'000}, several()}) {
    SCOPED_TRACE(count);
    std::atomic<std::int64_t> bytes{0}, across{0};
    run([&](const Communicator& c) {
      Array values(Dtype::f32, count);
      const Moved moved = completed(c.all_reduce(values.view()));
      bytes += moved.bytes;
      across += moved.across_hosts;
    });
    const std::int64_t n = size(), once = count * 4;
    EXPECT_EQ(bytes, once <= exchanged() ? n * (n - 1) * once : 2 * (n - 1) * once);
    if (host(size() - 1) == 0) {
      EXPECT_EQ(across, 0);
    } else if (host(1) == 1) {
      EXPECT_EQ(across, bytes);
    }
  }
}

TEST_P(CommunicatorSuite, GroupsSplitFromItKnowTheHostsOfTheirMembers) {
  run([&](const Communicator& c) {
    for (const bool odd : {false, true}) {
      const auto color = [&](int rank) { return odd ? rank % 2 : host(rank); };
      const Communicator group = c.split(color(c.rank()), -c.rank());
      std::int64_t members = 0, apart = 0;
      for (int r = 0; r < size(); ++r)
        if (color(r) == color(c.rank())) {
          ++members;
          apart += host(r) == host(c.rank()) ? 0 : 1;
        }
      const int here = group.topology().ranks_per_host;
      EXPECT_EQ(here == 0 ? group.size() : here, members - apart);
      EXPECT_FALSE(group.topology().two_levels);
      Array shard(Dtype::f32, 5), whole(Dtype::f32, 5 * members);
      EXPECT_EQ(completed(group.all_gather(shard.view(), whole.view())), (Moved{(members - 1) * 20, apart * 20}));
      c.barrier().wait();
    }
  });
}

TEST_P(CommunicatorSuite, RefusesArgumentsThatContradictEachOther) {
  run([&](const Communicator& c) {
    const auto refusal = [&](auto call) -> std::string {
      try {
        call();
      } catch (const ConfigError& error) {
        return error.what();
      }
      return "accepted";
    };
    Array a(Dtype::f32, 5), b(Dtype::f32, 5 * size() + 1), bytes(Dtype::u8, 5), half(Dtype::bf16, 5 * size());
    const std::string rank = "rank " + std::to_string(c.rank()) + ": ";
    const std::string sizes = "the whole has " + std::to_string(5 * size() + 1) + " elements, the shard 5";
    EXPECT_NE(refusal([&] { c.all_gather(a.view(), b.view()); }).find(rank + "all_gather: " + sizes), -1ul);
    EXPECT_NE(refusal([&] { c.reduce_scatter(b.view(), a.view()); }).find(rank + "reduce_scatter: " + sizes), -1ul);
    for (const Leaves& leaves : {Leaves{0, 2, 0}, {1, 1, 0}, {-1, 1, 9}, {0, 0, 9}, {0, 1, -1}, {1, 4, 4 * size()}})
      EXPECT_NE(refusal([&] { c.reduce_scatter(b.view(), a.view(), leaves); }).find(rank + "reduce_scatter: "), -1ul);
    EXPECT_NE(refusal([&] { c.all_gather(a.view(), half.view()); }).find("dtype bf16 instead of fp32"), -1ul);
    EXPECT_NE(refusal([&] { c.all_reduce(bytes.view()); }).find("uint8"), -1ul);
    EXPECT_NE(refusal([&] { c.all_to_all(a.view(), b.view()); }).find("5 elements, the output"), -1ul);
    EXPECT_NE(refusal([&] { c.broadcast(a.view(), size()); }).find("root " + std::to_string(size())), -1ul);
    EXPECT_NE(refusal([&] { c.broadcast({nullptr, 1, Dtype::f32, -1}, 0); }).find("without memory"), -1ul);
    c.barrier().wait();
  });
}

TEST_P(CommunicatorSuite, APeerThatLeavesFailsTheOthers) {
  if (size() == 1) return;
  const auto texts = errors([&](const Communicator& c) {
    c.barrier().wait();
    if (c.rank() == 0) throw StateError("gone");
    Array values(Dtype::f32, 10);
    c.all_reduce(values.view()).wait();
  });
  for (int r = 1; r < size(); ++r) {
    const std::string& text = texts[static_cast<std::size_t>(r)];
    EXPECT_NE(text.find("rank " + std::to_string(r) + ": all_reduce #2 (10 fp32)"), text.npos) << text;
    EXPECT_NE(text.find("ZERO_TIMEOUT"), text.npos) << text;
  }
}

// What the others are told at a barrier to which rank 0 does not come; nothing where they did not all join in time.
inline std::vector<std::string> told_of_an_absent_peer(const MakeRank& make, int size) {
  std::latch ended(size - 1);
  std::atomic<int> joined{0};
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  const auto as_rank = [&](int rank) {
    try {
      const Communicator c(make(rank));
      ++joined;
      if (rank == 0) return ended.wait();
      c.barrier().wait();
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(rank)] = error.what();
    }
    if (rank != 0) ended.count_down();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(as_rank, rank);
  for (auto& thread : threads) thread.join();
  return joined == size ? texts : std::vector<std::string>();
}

TEST_P(CommunicatorSuite, APeerThatDoesNotComeFailsTheOthersInTime) {
  if (size() != 3) return;
  const Backend& backend = std::get<0>(GetParam());
  std::vector<std::string> texts;
  // A slow machine's ranks need longer to join.
  for (Timeout patience = backend.patience; texts.empty() && patience < kNoHang; patience *= 2)
    texts = told_of_an_absent_peer(backend.group(size(), patience), size());
  ASSERT_FALSE(texts.empty()) << "the ranks did not join";
  for (int r = 1; r < size(); ++r) EXPECT_NE(texts[static_cast<std::size_t>(r)].find("barrier #1"), std::string::npos);
}

TEST_P(CommunicatorSuite, FailsEveryCallAfterAFailure) {
  if (size() == 1) return;
  errors([&](const Communicator& c) {
    if (c.rank() == 0) return;
    EXPECT_THROW(c.barrier().wait(), CommError);
    EXPECT_THROW(c.barrier().wait(), CommError);
  });
}

TEST_P(CommunicatorSuite, NamesOtherOperations) {
  expect_divergence(
      [&](const Communicator& c, bool odd) {
        Array values(Dtype::f32, 4);
        c.barrier().wait();
        if (odd) c.all_reduce(values.view()).wait();
        if (!odd) c.barrier().wait();
      },
      "barrier #2", "all_reduce #2 (4 fp32)");
}

TEST_P(CommunicatorSuite, NamesOtherShapes) {
  expect_divergence(
      [&](const Communicator& c, bool odd) {
        Array shard(Dtype::f32, odd ? 3 : 4), whole(Dtype::f32, shard.count * size());
        c.all_gather(shard.view(), whole.view()).wait();
      },
      "all_gather #1 (4 fp32 -> " + std::to_string(4 * size()) + " fp32)",
      "all_gather #1 (3 fp32 -> " + std::to_string(3 * size()) + " fp32)");
}

TEST_P(CommunicatorSuite, NamesOtherDtypes) {
  expect_divergence(
      [&](const Communicator& c, bool odd) {
        Array values(odd ? Dtype::bf16 : Dtype::f16, 4);
        c.all_reduce(values.view()).wait();
      },
      "all_reduce #1 (4 fp16)", "all_reduce #1 (4 bf16)");
}

TEST_P(CommunicatorSuite, NamesOtherRoots) {
  expect_divergence(
      [&](const Communicator& c, bool odd) {
        Array values(Dtype::i64, 4);
        c.broadcast(values.view(), odd ? 1 : 0).wait();
      },
      "broadcast #1 (4 int64, root 0)", "broadcast #1 (4 int64, root 1)");
}

TEST_P(CommunicatorSuite, ChecksWhatIsSplitFromIt) {
  expect_divergence(
      [&](const Communicator& c, bool odd) {
        const Communicator all = c.split(0, c.rank());
        if (odd) all.barrier().wait();
        if (!odd) all.split(0, 0);
      },
      "split #1", "barrier #1");
}

}  // namespace zero::test

// States of engines that are not there, saved by threads as ranks, and read again.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "partition/state_pieces.h"
#include "persist/checkpoint_reader.h"
#include "persist/checkpoint_writer.h"
#include "zero/world.h"

namespace zero::test {

// Tensors, each in an order of its memory, with bytes that differ.
struct MadeState {
  struct Tensor {
    StateTensor tensor;
    ElementOrder order;
    std::string values;  // row-major
  };
  std::vector<Tensor> tensors;
  StateScalars scalars;

  // `order`: the dimensions from the slowest to the fastest; empty: row-major.
  MadeState& add(StateTensor tensor, const std::vector<std::size_t>& order = {}) {
    std::vector<std::int64_t> strides(tensor.shape.size());
    std::int64_t stride = 1;
    for (std::size_t d = strides.size(); d-- > 0;) {
      const std::size_t dimension = order.empty() ? d : order[d];
      strides[dimension] = stride;
      stride *= tensor.shape[dimension];
    }
    std::string values(static_cast<std::size_t>(tensor.numel() * size_of(tensor.dtype)), '\0');
    unsigned state = static_cast<unsigned>(tensors.size()) + 1;
    for (char& each : values) each = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
    ElementOrder memory(tensor.shape, strides);
    tensors.push_back({std::move(tensor), std::move(memory), std::move(values)});
    return *this;
  }

  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const Tensor& each : tensors) sum += static_cast<std::int64_t>(each.values.size());
    return sum;
  }
};

// How ranks have the tensors: each cut over groups of `shards` ranks, `replicas` groups having the same; buffers whole
// on every rank, and other values on all but the first.
struct Spread {
  int shards = 1, replicas = 1;
  int ranks() const { return shards * replicas; }
};

inline EngineState state_of(const MadeState& made, const Spread& spread, int rank) {
  static const auto valid = std::make_shared<int>();
  std::vector<StateTensor> tensors;
  std::vector<StatePiece> pieces;
  for (const MadeState::Tensor& each : made.tensors) {
    const std::size_t index = tensors.size();
    tensors.push_back(each.tensor);
    const bool buffer = each.tensor.key.kind == StateKind::buffer;
    const std::int64_t n = each.tensor.numel(), s = rank % spread.shards;
    const std::int64_t begin = buffer ? 0 : n * s / spread.shards, end = buffer ? n : n * (s + 1) / spread.shards;
    if (begin == end) continue;
    const auto item = static_cast<std::size_t>(size_of(each.tensor.dtype));
    auto memory = std::make_shared<std::string>(static_cast<std::size_t>(end - begin) * item, '\0');
    each.order.each_run(begin, end, [&](auto first, auto last, auto place) {
      std::memcpy(memory->data() + static_cast<std::size_t>(place - begin) * item,
                  each.values.data() + static_cast<std::size_t>(first) * item,
                  static_cast<std::size_t>(last - first) * item);
    });
    if (buffer && rank > 0) memory->assign(memory->size(), '\x7f');
    const auto hold = [memory] { return std::shared_ptr<const void>(memory, memory->data()); };
    pieces.emplace_back(index, end - begin, buffer ? rank : rank / spread.shards,
                        buffer ? spread.ranks() : spread.replicas,
                        std::make_shared<StatePiece::Values>(each.order, begin, end, each.tensor.dtype, hold, valid));
  }
  return {made.scalars, tensors, pieces};
}

// What each rank's work throws; empty where it does not.
inline std::vector<std::string> on_ranks(int ranks, const std::function<void(const Communicator&)>& work) {
  std::vector<std::string> faults(static_cast<std::size_t>(ranks));
  std::vector<World> worlds = thread_worlds(ranks);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < worlds.size(); ++r)
    threads.emplace_back([&, world = std::move(worlds[r]), r] {
      try {
        work(world.communicator());
      } catch (const std::exception& error) {
        faults[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return faults;
}

inline std::vector<std::string> save(Env& env, const std::string& folder, const MadeState& made, const Spread& spread,
                                     CheckpointOptions options = {}, const std::vector<UserTensor>& user_tensors = {}) {
  options.mesh = MeshShape(spread.ranks(), {.shard = spread.shards});
  return on_ranks(spread.ranks(), [&](const Communicator& communicator) {
    Snapshot snapshot(state_of(made, spread, communicator.rank()), communicator.rank(),
                      communicator.rank() == 0 ? user_tensors : std::vector<UserTensor>());
    std::vector<double> memory(static_cast<std::size_t>(snapshot.bytes() / 8 + 1));
    snapshot.take(memory.data());
    write_checkpoint(env, communicator, folder, snapshot, options);
  });
}

// A few tensors of every kind and order.
inline MadeState small_state(std::int64_t steps = 7) {
  MadeState made;
  made.scalars.steps = steps;
  made.scalars.seed = 0xfedcba9876543210u;
  made.scalars.updates = {{"a", steps}, {"b", 0}};
  made.add({{"a", StateKind::main_weight}, Dtype::f32, {6, 7}})
      .add({{"a", StateKind::moment, "0"}, Dtype::bf16, {6, 7}}, {1, 0})
      .add({{"b", StateKind::parameter}, Dtype::f64, {}})
      .add({{"c", StateKind::moment, "1"}, Dtype::u8, {4, 3, 2, 5}}, {0, 2, 3, 1})
      .add({{"none", StateKind::parameter}, Dtype::f32, {3, 0}})
      .add({{"mean", StateKind::buffer}, Dtype::i64, {5}});
  StateTensor scale{{"c", StateKind::scale, "1"}, Dtype::f32, {2}};
  scale.blocks = StateBlocks{256, 32, {0, 2, 3, 1}};
  made.add(scale);
  return made;
}

}  // namespace zero::test

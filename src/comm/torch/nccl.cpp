#include "comm/torch/nccl.h"

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "base/collective_rules.h"
#include "base/sum_tree.h"
#include "comm/backend.h"
#include "device/torch/dtypes.h"
#include "zero/error.h"

namespace zero {
namespace {

using NcclGroup = c10d::ProcessGroupNCCL;

constexpr std::int64_t kSumBytes = 64 << 20;  // bytes for the chunks of a sum

at::Tensor node_sum(std::span<const at::Tensor> sources, std::span<const LeafRange> nodes, at::ScalarType type) {
  if (sources.size() == 1) return sources[0].to(type);
  const std::size_t left = left_half(nodes);
  return node_sum(sources.first(left), nodes.first(left), type) +
         node_sum(sources.subspan(left), nodes.subspan(left), type);
}

// Work of the device.
class OnStream final : public Pending::State {
 public:
  OnStream(const c10::cuda::CUDAStream& stream, const Moved& moved) : moved_(moved) { event_.record(stream); }
  void wait() override { event_.synchronize(); }
  void wait_in(const Stream& stream) override {
    event_.block(
        c10::cuda::CUDAStream(c10::Stream::unpack3(stream.id, static_cast<c10::DeviceIndex>(stream.device_index),
                                                   static_cast<c10::DeviceType>(stream.device_type))));
  }
  bool done() override { return event_.query(); }
  Moved moved() const override { return moved_; }

 private:
  Moved moved_;
  at::cuda::CUDAEvent event_;
};

class NcclCommunicator final : public CommunicatorImpl {
 public:
  NcclCommunicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const NcclOptions& options)
      : rank_(rank),
        size_(size),
        options_(options),
        tally_(options.hosts, rank),
        store_(std::move(store)),
        stream_(c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(options.device))) {
    auto nccl = NcclGroup::Options::create();
    nccl->timeout = options.timeout;
    group_ = c10::make_intrusive<NcclGroup>(store_, rank, size, nccl);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Topology topology() const override { return options_.hosts.topology(rank_); }
  std::string_view backend() const override { return "nccl"; }
  std::chrono::milliseconds time_limit() const override { return options_.timeout; }

  // On our stream, after what the caller's stream was given so far.
  Pending run(const CollectiveCall& call) override {
    const auto fingerprint = Fingerprint::of(++sequence_, call);
    const bool here = call.in.device == options_.device && call.out.device == options_.device;
    if (!here && call.collective != Collective::barrier)
      reject_call(call, *this, "memory outside of device " + std::to_string(options_.device));
    try {
      at::cuda::CUDAEvent ready;
      ready.record(c10::cuda::getCurrentCUDAStream(stream_.device_index()));
      const c10::cuda::CUDAStreamGuard guard(stream_);
      ready.block(stream_);
      carry_out(call);
      return Pending(std::make_shared<OnStream>(stream_, tally_.take()));
    } catch (const std::exception& error) {
      const std::string text = error.what();
      throw CommError("rank " + std::to_string(rank_) + ": " + fingerprint.text() +
                          " failed over nccl: " + text.substr(0, text.find('\n')),
                      "a peer died or did not arrive in time; see the other ranks' errors, or raise ZERO_TIMEOUT");
    }
  }

  std::shared_ptr<CommunicatorImpl> split(int color, int key) override {
    const std::string prefix = "split/" + std::to_string(++sequence_) + "/";
    std::vector<std::uint8_t> own(sizeof(SplitCall));
    const SplitCall call{color, key};
    std::memcpy(own.data(), &call, sizeof(call));
    store_->set(prefix + std::to_string(rank_), own);
    std::vector<SplitCall> calls(static_cast<std::size_t>(size_));
    for (int r = 0; r < size_; ++r)
      std::memcpy(&calls[static_cast<std::size_t>(r)], store_->get(prefix + std::to_string(r)).data(), sizeof(call));
    const auto members = split_group(calls, rank_);
    const auto self = std::find(members.begin(), members.end(), rank_) - members.begin();
    auto store = c10::make_intrusive<c10d::PrefixStore>(prefix + "color/" + std::to_string(color), store_);
    NcclOptions options = options_;
    options.hosts = options_.hosts.of(members);
    return nccl_communicator(store, static_cast<int>(self), static_cast<int>(members.size()), options);
  }

 private:
  at::Tensor tensor(ConstView view) const {
    const auto device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(options_.device));
    return at::from_blob(const_cast<void*>(view.data), {view.count},
                         at::TensorOptions(scalar_type(view.dtype)).device(device));
  }

  void carry_out(const CollectiveCall& call) {
    switch (call.collective) {  // what NCCL has of its own
      case Collective::all_gather: return gather(tensor(call.in), tensor(call.out));
      case Collective::broadcast: return broadcast(tensor(call.out), call.root);
      case Collective::barrier: return meet();
      default: break;
    }
    const CollectiveRule& rule = rule_of(call.collective);
    if (!rule.sums) return move(call);
    if (rule.in == Cut::slices) return reduce(tensor(call.in), tensor(call.out), GroupSum(call.leaves, size_));
    sum(tensor(call.out));
  }

  // NCCL does not say which way bytes go: every rank's count as coming from it.
  void from_each(std::int64_t bytes) {
    for (int r = 0; r < size_; ++r) tally_.from(r, bytes);
  }

  void gather(at::Tensor shard, at::Tensor whole) {
    group_->_allgather_base(whole, shard)->wait();
    from_each(static_cast<std::int64_t>(shard.nbytes()));
  }

  // Chunk by chunk, every rank sends each peer that peer's slice of what it brings and sums its own.
  void reduce(const at::Tensor& brought, const at::Tensor& out, const GroupSum& sum) {
    const SumParts parts(sum);
    const std::int64_t results = sum.sums(), length = out.numel() / results;
    const at::Tensor slices = brought.view({sum.most(), size_, length}), sums = out.view({results, length});
    const std::int64_t chunk = std::max<std::int64_t>(1, kSumBytes / std::ssize(parts.parts) / brought.element_size());
    for (std::int64_t at = 0; at < length; at += chunk) {
      const std::int64_t count = std::min(chunk, length - at);
      std::vector<at::Tensor> inputs, outputs;
      for (int r = 0; r < size_; ++r) {
        const std::int64_t theirs = sum.brought(r);
        inputs.push_back(slices.select(1, r).narrow(0, 0, sum.brought(rank_)).narrow(1, at, count).contiguous());
        outputs.push_back(at::empty({theirs, count}, brought.options()));
        tally_.from(r, theirs * count * brought.element_size());
      }
      group_->alltoall(outputs, inputs)->wait();
      add(parts, outputs, sums.narrow(1, at, count));
    }
  }

  // `brought` by rank, a part of it a row.
  static void add(const SumParts& sum, std::span<const at::Tensor> brought, const at::Tensor& sums) {
    std::vector<at::Tensor> sources;
    for (const auto& [rank, number] : sum.parts)
      sources.push_back(brought[static_cast<std::size_t>(rank)].select(0, number));
    const std::span<const LeafRange> nodes = sum.nodes;
    sum.each_sum([&](std::size_t which, std::size_t first, std::size_t number) {
      const at::Tensor added = node_sum(std::span<const at::Tensor>(sources).subspan(first, number),
                                        nodes.subspan(first, number), sum_type(sources[first]));
      sums.select(0, static_cast<std::int64_t>(which)).copy_(added);
    });
  }

  void sum(const at::Tensor& values) {
    const std::int64_t count = values.numel();
    const at::Tensor padded = at::zeros({Slices{count, size_}.length() * size_}, values.options());
    padded.narrow(0, 0, count).copy_(values);
    const at::Tensor slice = padded.chunk(size_)[static_cast<std::size_t>(rank_)];
    reduce(padded, slice, GroupSum({}, size_));
    gather(slice, padded);
    values.copy_(padded.narrow(0, 0, count));
  }

  void move(const CollectiveCall& call) {
    const CollectiveRule& rule = rule_of(call.collective);
    const at::Tensor in = tensor(call.in), out = tensor(call.out);
    const std::int64_t length = in.numel() / slices_of_input(call, size_);
    std::vector<at::Tensor> inputs, outputs;
    for (int r = 0; r < size_; ++r) {
      const Take theirs = rule.take(r, rank_, call.root), mine = rule.take(rank_, r, call.root);
      inputs.push_back(theirs ? in.narrow(0, theirs.slice * length, length) : in.narrow(0, 0, 0));
      outputs.push_back(mine ? out.narrow(0, mine.place * length, length) : out.narrow(0, 0, 0));
      tally_.from(r, static_cast<std::int64_t>(outputs.back().nbytes()));
    }
    group_->alltoall(outputs, inputs)->wait();
  }

  void broadcast(const at::Tensor& values, int root) {
    std::vector<at::Tensor> tensors{values};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group_->broadcast(tensors, options)->wait();
    const auto bytes = static_cast<std::int64_t>(values.nbytes());
    tally_.from(root, bytes);
    if (rank_ == root && size_ > 1) tally_.broadcast(bytes);
  }

  void meet() {
    c10d::BarrierOptions options;
    options.device_ids = {options_.device};
    group_->barrier(options)->wait();
  }

  static at::ScalarType sum_type(const at::Tensor& values) {
    const auto type = values.scalar_type();
    return type == at::kBFloat16 || type == at::kHalf ? at::kFloat : type;
  }

  int rank_;
  int size_;
  NcclOptions options_;
  Tally tally_;  // of the call that is being made
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<NcclGroup> group_;
  c10::cuda::CUDAStream stream_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

bool has_nccl() {
  return true;
}

std::uint64_t device_identity(int device) {
  const auto& uuid = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))->uuid;
  return std::hash<std::string_view>()({uuid.bytes, sizeof(uuid.bytes)});
}

std::shared_ptr<CommunicatorImpl> nccl_communicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const NcclOptions& options) {
  return std::make_shared<NcclCommunicator>(std::move(store), rank, size, options);
}

}  // namespace zero

#include "comm/torch/c10d.h"

#include <ATen/ops/from_blob.h>
#include <sched.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "base/random.h"
#include "comm/messages.h"
#include "comm/torch/torch_log.h"
#include "zero/error.h"

namespace zero {
namespace {

using Group = c10d::ProcessGroupGloo;

constexpr std::uint32_t kRounds = 1u << 16;  // with a tag of their own in one call
constexpr std::uint32_t kMarks = 1u << 14;

// Part of the tag of a call's messages. Ranks that call different operations thus wait until their time is up:
// Gloo would end the process over a message of a size that it does not expect.
std::uint32_t mark(const Fingerprint& call) {
  const std::string_view bytes(reinterpret_cast<const char*>(&call), sizeof call);
  return static_cast<std::uint32_t>(fnv1a(bytes) >> 32) % kMarks;
}

// Threads started in its lifetime do not preempt others when they wake up. Gloo's thread polls, at
// full speed, a connection that another thread has locked; had it preempted that thread on a busy
// host, it would poll until the end of its time slice, milliseconds for a message of microseconds.
class YieldingThreads {
 public:
  YieldingThreads() : policy_(sched_getscheduler(0)) { set(SCHED_BATCH); }
  ~YieldingThreads() { set(SCHED_OTHER); }
  YieldingThreads(const YieldingThreads&) = delete;
  YieldingThreads& operator=(const YieldingThreads&) = delete;

 private:
  void set(int policy) const {
    const sched_param none{};
    if (policy_ == SCHED_OTHER) sched_setscheduler(0, policy, &none);
  }

  int policy_;
};

std::shared_ptr<gloo::transport::Device> make_device(const GlooOptions& options) {
  const YieldingThreads scope;
  return Group::createDeviceForHostname(options.address);
}

c10::intrusive_ptr<Group> make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                     const GlooOptions& options) {
  auto gloo = Group::Options::create(options.timeout);
  gloo->threads = 1;
  gloo->devices = {make_device(options)};
  return c10::make_intrusive<Group>(store, rank, size, gloo);
}

class GlooRound final : public MessageRound {
 public:
  GlooRound(Group* group, int tag, std::chrono::milliseconds timeout) : group_(group), tag_(tag), timeout_(timeout) {}

  void receive(void* data, std::int64_t bytes, int peer) override {
    std::vector<at::Tensor> message{tensor(data, bytes)};
    receives_.push_back(group_->recv(message, peer, tag_));
  }
  void send(const void* data, std::int64_t bytes, int peer) override {
    std::vector<at::Tensor> message{tensor(const_cast<void*>(data), bytes)};
    sends_.push_back(group_->send(message, peer, tag_));
  }
  void wait_received() override { wait(receives_); }
  void wait_sent() override { wait(sends_); }

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  static at::Tensor tensor(void* data, std::int64_t bytes) {
    return at::from_blob(data, {bytes}, at::TensorOptions(at::kByte));
  }
  void wait(Works& works) {
    for (auto& work : works) work->wait(timeout_);
    works.clear();
  }

  Group* group_;
  int tag_;
  std::chrono::milliseconds timeout_;
  Works receives_;
  Works sends_;
};

class GlooCommunicator final : public MessageCommunicator {
 public:
  GlooCommunicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size, const GlooOptions& options);
  ~GlooCommunicator() override;

  std::string_view backend() const override { return "gloo"; }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override;

 private:
  std::unique_ptr<MessageRound> round(const Fingerprint& call, std::uint32_t number) override;
  void close(const Fingerprint&, const std::string&) override { group_.reset(); }
  std::string words_of(const std::exception& error) const override { return gist(error, options_.debug); }
  void meet();

  GlooOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Group> group_;
};

GlooCommunicator::GlooCommunicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   const GlooOptions& options)
    : MessageCommunicator(rank, size, {options.timeout, options.world_rank, options.hosts}),
      options_(options),
      store_(std::move(store)) {
  if (size > 1) join([this] { meet(); });
}

// On the communicator's thread, like all that touches the group: see Worker for why.
void GlooCommunicator::meet() {
  const QuietTorch quiet(options_.debug);
  store_->setTimeout(options_.timeout);
  group_ = make_group(store_, rank(), size(), options_);
  await_peers();
}

GlooCommunicator::~GlooCommunicator() {
  leave([this] { group_.reset(); });
}

std::unique_ptr<MessageRound> GlooCommunicator::round(const Fingerprint& call, std::uint32_t number) {
  const auto tag = static_cast<int>(mark(call) * kRounds + number % kRounds);
  return std::make_unique<GlooRound>(group_.get(), tag, options_.timeout);
}

std::shared_ptr<CommunicatorImpl> GlooCommunicator::split(int color, int key) {
  const Split group = split_members(color, key);
  GlooOptions options = options_;
  options.hosts = group.options.hosts;
  const std::string prefix = "split/" + std::to_string(group.sequence) + "/" + std::to_string(color);
  return gloo_communicator(c10::make_intrusive<c10d::PrefixStore>(prefix, store_), group.self,
                           static_cast<int>(group.members.size()), options);
}

}  // namespace

std::shared_ptr<CommunicatorImpl> gloo_communicator(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                    const GlooOptions& options) {
  return std::make_shared<GlooCommunicator>(std::move(store), rank, size, options);
}

}  // namespace zero

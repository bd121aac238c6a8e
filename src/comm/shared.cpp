#include "comm/shared.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "comm/descriptor_passing.h"
#include "comm/direct.h"
#include "comm/gate.h"
#include "comm/segment.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr std::size_t kNameBytes = 64;

class SharedMemoryCommunicator final : public DirectCommunicator {
 public:
  SharedMemoryCommunicator(const Descriptor& file, int rank, int size, const SharedMemoryOptions& options)
      : DirectCommunicator(HostMap(), rank),
        segment_(std::make_shared<Segment>(file, rank, shape(size))),
        gate_(segment_, rank, options.numbers, options.timeout, options.waits),
        rank_(rank),
        size_(size),
        timeout_(options.timeout),
        numbers_(options.numbers),
        waits_(options.waits) {
    segment_->join();
    gate_.meet(Fingerprint::of(0, {}), options.still_wanted);
  }
  ~SharedMemoryCommunicator() override { gate_.leave(); }

  static Segment::Shape shape(int size) { return {size, Gate::bytes(size), 2 * kStagingHalf}; }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return "shared memory"; }
  std::chrono::milliseconds time_limit() const override { return timeout_; }
  std::shared_ptr<CommunicatorImpl> split(int color, int key) override;
  std::shared_ptr<void> own_memory(std::int64_t bytes) override { return segment_->own_memory(bytes); }
  std::shared_ptr<void> common_memory(std::int64_t bytes) override;
  void give_up(const std::string& why) override { gate_.give_up(why); }

 private:
  Reach enter(const Fingerprint& call, ConstView published) override;
  void sync() override { gate_.meet(call_); }
  char* peer(int rank) override;
  char* staging(int rank, int half) override { return segment_->staging(rank) + half * kStagingHalf; }
  GateMessage& message(int rank) { return gate_.message(rank, call_.sequence); }
  void come(const Fingerprint& call);
  void compare();

  std::shared_ptr<Segment> segment_;
  Gate gate_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
  std::vector<int> numbers_;
  std::shared_ptr<Waits> waits_;
  Fingerprint call_;  // under way
  Reach reach_ = Reach::memory;
};

// Who sends a message must have filled the rest of it.
void SharedMemoryCommunicator::come(const Fingerprint& call) {
  call_ = call;
  message(rank_).call = call;
  sync();
  compare();
}

void SharedMemoryCommunicator::compare() {
  bool same = true;
  for (int r = 0; r < size_; ++r) same = same && message(r).call == call_;
  if (same) return;
  std::vector<Fingerprint> calls;
  for (int r = 0; r < size_; ++r) calls.push_back(message(r).call);
  require_same(calls, rank_, numbers_);
}

DirectCommunicator::Reach SharedMemoryCommunicator::enter(const Fingerprint& call, ConstView published) {
  GateMessage& mine = gate_.mine(call.sequence);
  const bool fits = published.bytes() <= GateMessage::kInline;
  mine.offset = fits ? -1 : segment_->offset_of(published.data);
  const bool gives = call.root < 0 || call.root == rank_;
  if (fits && gives && published.count > 0)
    std::memcpy(mine.data, published.data, static_cast<std::size_t>(published.bytes()));
  come(call);
  bool visible = true;
  for (int r = 0; r < size_; ++r) visible = visible && (message(r).offset >= 0 || (call.root >= 0 && call.root != r));
  reach_ = fits ? Reach::copy : visible ? Reach::memory : Reach::staged;
  return reach_;
}

char* SharedMemoryCommunicator::peer(int rank) {
  GateMessage& theirs = message(rank);
  return reach_ == Reach::copy ? theirs.data : segment_->at(theirs.offset);
}

std::shared_ptr<void> SharedMemoryCommunicator::common_memory(std::int64_t bytes) {
  const View request{nullptr, bytes, Dtype::u8};
  come(Fingerprint::of(next_sequence(), {Collective::broadcast, request, request, 0}));
  return segment_->common_memory(bytes);
}

// The first rank of each new group makes its segment and tells the others the name in a second meeting. Whoever fails
// behind that says so, and the group that is split remains as it was.
std::shared_ptr<CommunicatorImpl> SharedMemoryCommunicator::split(int color, int key) {
  const Fingerprint call = Fingerprint::split(next_sequence());
  gate_.mine(call.sequence).split = {color, key};
  come(call);
  std::vector<SplitCall> calls;
  for (int r = 0; r < size_; ++r) calls.push_back(message(r).split);
  const std::vector<int> members = split_group(calls, rank_);
  const auto self = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
  const Fingerprint naming = Fingerprint::split(next_sequence());
  SharedMemoryOptions options{timeout_,
                              [&] { gate_.check(naming, members); },
                              [&](const std::string& name) {
                                char* const text = gate_.mine(naming.sequence).data;
                                std::memset(text, 0, kNameBytes);
                                name.copy(text, kNameBytes - 1);
                                come(naming);
                              },
                              [&] {
                                come(naming);
                                return std::string(message(members.front()).data);
                              },
                              {},
                              waits_};
  for (const int r : members) options.numbers.push_back(numbers_[static_cast<std::size_t>(r)]);
  try {
    return shared_memory_communicator(self, static_cast<int>(members.size()), options);
  } catch (...) {
    gate_.fail_in(naming.sequence);
    throw;
  }
}

struct Offer {
  Descriptor file;
  Handout handout;
};

// A segment that the others can fetch. They are told when there is none.
Offer offer(int size, const SharedMemoryOptions& options) try {
  return {Segment::create(SharedMemoryCommunicator::shape(size)), Handout()};
} catch (...) {
  options.publish("");
  throw;
}

Descriptor fetch(int rank, const SharedMemoryOptions& options) {
  const std::string name = options.look_up();
  if (!name.empty()) return fetch_descriptor(name, options.timeout, options.still_wanted);
  const auto number = [&](int r) { return std::to_string(options.numbers[static_cast<std::size_t>(r)]); };
  throw CommError("rank " + number(rank) + ": rank " + number(0) + " could not make memory to share",
                  "see that rank's own error");
}

}  // namespace

std::shared_ptr<CommunicatorImpl> shared_memory_communicator(int rank, int size, SharedMemoryOptions options) {
  if (options.numbers.empty())
    for (int r = 0; r < size; ++r) options.numbers.push_back(r);
  const auto join = [&](const Descriptor& file) {
    return std::make_shared<SharedMemoryCommunicator>(file, rank, size, options);
  };
  if (rank != 0) return join(fetch(rank, options));
  const Offer offered = offer(size, options);
  options.publish(offered.handout.name());
  offered.handout.give(offered.file.get(), size - 1, options.timeout, options.still_wanted);
  return join(offered.file);
}

}  // namespace zero

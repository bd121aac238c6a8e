#include "zero/communicator.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/process_of_origin.h"
#include "comm/backend.h"
#include "comm/keyed_split.h"
#include "comm/tree_sum.h"
#include "zero/error.h"

namespace zero {
namespace {

class SelfCommunicator final : public CommunicatorImpl {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view backend() const override { return "self"; }

  Pending all_gather(ConstView shard, View whole) override { return copy(Collective::all_gather, shard, whole); }
  Pending all_to_all(ConstView input, View output) override { return copy(Collective::all_to_all, input, output); }
  Pending all_reduce(View) override { return {}; }
  Pending broadcast(View, int) override { return {}; }
  Pending barrier() override { return {}; }

  Pending reduce_scatter(ConstView whole, View shard) override {
    if (whole.dtype == shard.dtype) return copy(Collective::reduce_scatter, whole, shard);
    require_cpu(Collective::reduce_scatter, *this, whole, shard);
    tree_sum({&whole.data, 1}, whole.dtype, shard.data, shard.count);
    return {};
  }

  std::shared_ptr<CommunicatorImpl> split(int, int) override { return std::make_shared<SelfCommunicator>(); }
  std::chrono::milliseconds time_limit() const override { return {}; }

 private:
  Pending copy(Collective operation, ConstView from, View to) {
    if (from.data == to.data || from.bytes() == 0) return {};
    require_cpu(operation, *this, from, to);
    std::memmove(to.data, from.data, static_cast<std::size_t>(from.bytes()));
    return {};
  }
};

// One call's arguments under test: every complaint names the rank and the operation.
class Check {
 public:
  Check(const CommunicatorImpl& group, Collective operation) : group_(group), operation_(operation) {}

  const Check& memory(ConstView view) const {
    if (view.count < 0) reject("a view of " + std::to_string(view.count) + " elements");
    if (view.count > 0 && !view.data) reject("a view of " + std::to_string(view.count) + " elements without memory");
    return *this;
  }

  const Check& whole_of(ConstView whole, ConstView shard) const {
    if (whole.count == shard.count * group_.size()) return *this;
    reject("the whole has " + std::to_string(whole.count) + " elements, the shard " + std::to_string(shard.count) +
           " for " + std::to_string(group_.size()) + " ranks");
  }

  const Check& counts(ConstView input, ConstView output) const {
    if (input.count != output.count)
      reject("the input has " + std::to_string(input.count) + " elements, the output " + std::to_string(output.count));
    if (input.count % group_.size() != 0)
      reject(std::to_string(input.count) + " elements do not divide by " + std::to_string(group_.size()) + " ranks");
    return *this;
  }

  const Check& dtypes(Dtype expected, Dtype actual) const {
    if (expected != actual)
      reject("the output has dtype " + std::string(name(actual)) + " instead of " + std::string(name(expected)));
    return *this;
  }

  const Check& sums(ConstView values) const {
    if (values.dtype == Dtype::u8) reject("uint8 values (" + std::to_string(values.count) + ") cannot be added up");
    return *this;
  }

  const Check& root(int root) const {
    if (root < 0 || root >= group_.size())
      reject("root " + std::to_string(root) + " in a group of " + std::to_string(group_.size()) + " ranks");
    return *this;
  }

 private:
  [[noreturn]] void reject(const std::string& what) const { reject_call(operation_, group_, what); }

  const CommunicatorImpl& group_;
  Collective operation_;
};

// A process that was forked has none of the threads of the group, which would be waited for: there it is left as it is.
struct LetGo {
  std::shared_ptr<CommunicatorImpl> kept;
  ProcessOfOrigin origin;
  void operator()(CommunicatorImpl*) {
    if (!origin.here()) new std::shared_ptr<CommunicatorImpl>(std::move(kept));
  }
};

std::shared_ptr<CommunicatorImpl> of_this_process(std::shared_ptr<CommunicatorImpl> group) {
  CommunicatorImpl* const seen = group.get();
  if (seen == nullptr) return group;
  return {seen, LetGo{std::move(group), {}}};
}

// Throws StateError in a process that was forked, whose calls the peers would take for the rank's.
void require_own(const std::shared_ptr<CommunicatorImpl>& group, std::string_view operation) {
  const LetGo* const of = std::get_deleter<LetGo>(group);
  if (of == nullptr || of->origin.here() || group->size() == 1) return;
  of->origin.require("rank " + std::to_string(group->rank()) + ": " + std::string(operation) + " is not possible");
}

}  // namespace

std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_gather: return "all_gather";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_reduce: return "all_reduce";
    case Collective::all_to_all: return "all_to_all";
    case Collective::broadcast: return "broadcast";
    case Collective::barrier: return "barrier";
  }
  return "?";
}

CommunicatorImpl::CommunicatorImpl() : splits_(std::make_shared<SplitQueue>()) {}

Communicator::Communicator() : impl_(std::make_shared<SelfCommunicator>()) {}

Communicator::Communicator(std::shared_ptr<CommunicatorImpl> impl) : impl_(of_this_process(std::move(impl))) {
  if (!impl_) throw ConfigError("a Communicator without an implementation");
}

int Communicator::rank() const {
  return impl_->rank();
}
int Communicator::size() const {
  return impl_->size();
}
Topology Communicator::topology() const {
  return impl_->topology();
}
std::string_view Communicator::backend() const {
  return impl_->backend();
}

Pending Communicator::all_gather(ConstView shard, View whole) const {
  Check(*impl_, Collective::all_gather)
      .memory(shard)
      .memory(whole)
      .whole_of(whole, shard)
      .dtypes(shard.dtype, whole.dtype);
  require_own(impl_, name(Collective::all_gather));
  return impl_->all_gather(shard, whole);
}

Pending Communicator::reduce_scatter(ConstView whole, View shard) const {
  const Check check(*impl_, Collective::reduce_scatter);
  check.memory(whole).memory(shard).sums(whole).whole_of(whole, shard).dtypes(accumulation(whole.dtype), shard.dtype);
  require_own(impl_, name(Collective::reduce_scatter));
  return impl_->reduce_scatter(whole, shard);
}

Pending Communicator::all_reduce(View values) const {
  Check(*impl_, Collective::all_reduce).memory(values).sums(values);
  require_own(impl_, name(Collective::all_reduce));
  return impl_->all_reduce(values);
}

Pending Communicator::all_to_all(ConstView input, View output) const {
  Check(*impl_, Collective::all_to_all)
      .memory(input)
      .memory(output)
      .counts(input, output)
      .dtypes(input.dtype, output.dtype);
  require_own(impl_, name(Collective::all_to_all));
  return impl_->all_to_all(input, output);
}

Pending Communicator::broadcast(View values, int root) const {
  Check(*impl_, Collective::broadcast).memory(values).root(root);
  require_own(impl_, name(Collective::broadcast));
  return impl_->broadcast(values, root);
}

Pending Communicator::barrier() const {
  require_own(impl_, name(Collective::barrier));
  return impl_->barrier();
}

Communicator Communicator::split(int color, int key) const {
  require_own(impl_, "split");
  return Communicator(impl_->split(color, key));
}

}  // namespace zero

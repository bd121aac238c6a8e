#include "zero/communicator.h"

#include <memory>
#include <string>
#include <utility>

#include "base/collective_rules.h"
#include "base/lifetimes.h"
#include "base/sum_tree.h"
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

  // A sum over one rank is another dtype at most.
  Pending run(const CollectiveCall& call) override {
    const ConstView in = call.in;
    const View out = call.out;
    const bool same = in.dtype == out.dtype;
    if (same && (in.data == out.data || in.bytes() == 0)) return {};
    require_cpu(call, *this);
    if (same) copy(out.data, in.data, in.bytes());
    if (!same) tree_sum({&in.data, 1}, in.dtype, out.data, out.count);
    return {};
  }
  std::shared_ptr<CommunicatorImpl> split(int, int) override { return std::make_shared<SelfCommunicator>(); }
  std::chrono::milliseconds time_limit() const override { return {}; }
};

// The arguments of a call under test: every complaint names the rank and the operation.
class Check {
 public:
  Check(const CommunicatorImpl& group, const CollectiveCall& call) : group_(group), call_(call) {}

  void all() const {
    memory(call_.in);
    memory(call_.out);
    shapes();
    dtypes();
  }

 private:
  void shapes() const {
    const CollectiveRule& rule = rule_of(call_.collective);
    if (rule.sums) sums();
    if (rule.rooted) root();
    if (rule.in == rule.out) return counts(rule);
    if (rule.out == Cut::slices) return whole_of(call_.out, call_.in);
    rule.sums ? parts() : whole_of(call_.in, call_.out);
  }

  void memory(ConstView view) const {
    if (view.count < 0) reject("a view of " + std::to_string(view.count) + " elements");
    if (view.count > 0 && !view.data) reject("a view of " + std::to_string(view.count) + " elements without memory");
  }

  void whole_of(ConstView whole, ConstView shard) const {
    if (whole.count == shard.count * group_.size()) return;
    reject("the whole has " + std::to_string(whole.count) + " elements, the shard " + std::to_string(shard.count) +
           " for " + std::to_string(group_.size()) + " ranks");
  }

  void parts() const {
    const auto& [first, each, all] = call_.leaves;
    const std::int64_t size = group_.size(), most_leaves = all == 0 ? size : all;
    if (first < 0 || each < 1 || all < 0 || each > most_leaves || first > most_leaves - each * size)
      reject(std::to_string(size) + " ranks with " + std::to_string(each) + " leaves each, from leaf " +
             std::to_string(first) + " on, of a sum of " + std::to_string(most_leaves));
    const GroupSum sum(call_.leaves, group_.size());
    const std::int64_t parts = sum.sums(), most = sum.most();
    if (call_.out.count % parts != 0 || call_.in.count % most != 0)
      reject("sums of " + std::to_string(most) + " nodes of a tree, which give " + std::to_string(parts) +
             ", do not divide " + std::to_string(call_.in.count) + " elements and " + std::to_string(call_.out.count));
    ConstView whole = call_.in, shard = call_.out;
    whole.count /= most;
    shard.count /= parts;
    whole_of(whole, shard);
  }

  void counts(const CollectiveRule& rule) const {
    const std::int64_t input = call_.in.count, output = call_.out.count;
    if (input != output)
      reject("the input has " + std::to_string(input) + " elements, the output " + std::to_string(output));
    if (rule.in == Cut::slices && input % group_.size() != 0)
      reject(std::to_string(input) + " elements do not divide by " + std::to_string(group_.size()) + " ranks");
  }

  void dtypes() const {
    const Dtype given = call_.in.dtype, actual = call_.out.dtype;
    const CollectiveRule& rule = rule_of(call_.collective);
    const Dtype expected = rule.sums && rule.in == Cut::slices ? accumulation(given) : given;
    if (expected != actual)
      reject("the output has dtype " + std::string(name(actual)) + " instead of " + std::string(name(expected)));
  }

  void sums() const {
    if (call_.in.dtype == Dtype::u8) reject("uint8 values (" + std::to_string(call_.in.count) + ") cannot be added up");
  }

  void root() const {
    if (call_.root < 0 || call_.root >= group_.size())
      reject("root " + std::to_string(call_.root) + " in a group of " + std::to_string(group_.size()) + " ranks");
  }

  [[noreturn]] void reject(const std::string& what) const { reject_call(call_, group_, what); }

  const CommunicatorImpl& group_;
  const CollectiveCall& call_;
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

Pending Communicator::run(const CollectiveCall& call) const {
  Check(*impl_, call).all();
  require_own(impl_, name(call.collective));
  return impl_->run(call);
}

Communicator Communicator::split(int color, int key) const {
  require_own(impl_, "split");
  return Communicator(impl_->split(color, key));
}

}  // namespace zero

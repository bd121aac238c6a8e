#include "parallel/automatic_cuts.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "backwards/arguments.h"
#include "backwards/operator_kind.h"
#include "parallel/dimensions.h"
#include "parallel/operator_flow.h"
#include "parallel/sharded_call.h"
#include "parallel/sharded_tensor.h"
#include "zero/error.h"

namespace zero {
namespace {

// In operations of a product: what goes over the wire, an element that is read and written, an element of a parameter
// that a rank keeps with its gradient and moments, and updates.
constexpr double kByteMoved = 64, kElement = 8, kElementKept = 256;
// An operator that runs whole has nobody's help, and all ranks wait for all of its operands.
constexpr double kByteOfWhole = 4 * kByteMoved;

// Ranks that there are not. What each of them would send is counted.
class ImaginedRanks final : public CommunicatorImpl {
 public:
  explicit ImaginedRanks(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::string_view backend() const override { return "imagined"; }
  Pending run(const CollectiveCall& call) override {
    const double others = size_ - 1, all = static_cast<double>(std::max(call.in.bytes(), call.out.bytes()));
    bytes_ += (call.collective == Collective::all_reduce ? 2 : 1) * all * others / size_;
    return {};
  }
  std::shared_ptr<CommunicatorImpl> split(int, int) override { return std::make_shared<ImaginedRanks>(size_); }
  std::chrono::milliseconds time_limit() const override { return {}; }
  double bytes() const { return bytes_; }

 private:
  int size_;
  double bytes_ = 0;
};

double count_of(const at::Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

// Multiplications and additions of what all ranks together compute.
double work_of(const OperatorFlow::Call& call) {
  if (OperatorKind::of(call.op).views) return 0;
  double largest = 0;
  for (const c10::IValue& result : call.results)
    for_each_defined(result, [&](const at::Tensor& tensor) { largest = std::max(largest, count_of(tensor)); });
  const double moved = kElement * largest;
  const auto operand = [&](std::size_t i) { return call.arguments[i].toTensor(); };
  const std::string_view name = call.op.operator_name().name;
  if (name == "aten::mm" || name == "aten::bmm") return 2 * largest * static_cast<double>(operand(0).size(-1));
  if (name == "aten::addmm" || name == "aten::baddbmm") return 2 * largest * static_cast<double>(operand(1).size(-1));
  if (name == "aten::convolution")
    return 2 * largest * count_of(operand(1)) / std::max(1., static_cast<double>(operand(1).size(0)));
  if (name == "aten::convolution_backward")
    return 4 * count_of(operand(0)) * count_of(operand(2)) / std::max(1., static_cast<double>(operand(2).size(0)));
  if (!name.starts_with("aten::_scaled_dot_product") || largest == 0) return moved;
  const bool backward = name.ends_with("_backward");
  const at::Tensor query = operand(backward ? 1 : 0), key = operand(backward ? 2 : 1);
  return (backward ? 10 : 4) * count_of(query) * static_cast<double>(key.size(-2));
}

class Rehearsal {
 public:
  Rehearsal(const OperatorFlow& flow, const std::vector<CutCandidate>& candidates, int ranks)
      : flow_(flow), candidates_(candidates), ranks_(ranks) {}

  // What a rank has to do with a micro-batch, or with the calls before number `end`, and an update.
  double cost(const AxisCuts& cuts, std::size_t end = SIZE_MAX) {
    const auto ranks = std::make_shared<ImaginedRanks>(ranks_);
    axis_ = std::make_shared<TensorAxis>(Communicator(ranks), Communicator(ranks));
    now_.clear();
    cost_ = 0;
    for (std::size_t i = 0; i < candidates_.size(); ++i) place(candidates_[i].stand_in, cuts[i]);
    const c10::InferenceMode no_graphs(false);
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const std::size_t count = std::min(end, flow_.calls().size());
    for (const OperatorFlow::Call& call : std::span(flow_.calls()).first(count)) {
      const double before = ranks->bytes();
      const Run run = play(call);
      const double work = work_of(call);
      cost_ += run == Run::in_parts ? work / ranks_ : work;
      cost_ += (ranks->bytes() - before) * (run == Run::whole ? kByteOfWhole : kByteMoved);
    }
    const double before = ranks->bytes();
    for (std::size_t i = 0; count < end && i < candidates_.size(); ++i) bring(candidates_[i].gradient, cuts[i]);
    cost_ += kByteMoved * (ranks->bytes() - before);
    now_.clear();
    return cost_;
  }

 private:
  enum class Run : std::uint8_t { by_all, in_parts, whole };

  void place(const at::Tensor& parameter, const std::optional<TensorCut>& cut) {
    cost_ += kElementKept * count_of(parameter) / (cut ? ranks_ : 1);
    if (!cut) return;
    std::vector<std::int64_t> sizes = parameter.sizes().vec();
    sizes[static_cast<std::size_t>(cut->dim)] /= ranks_;
    now_[parameter.unsafeGetTensorImpl()] =
        sharded::tensor(at::empty(sizes, parameter.options()), AxisPlacement::shard(*cut), axis_);
  }

  // As its parameter is cut.
  void bring(const at::Tensor& gradient, const std::optional<TensorCut>& cut) {
    if (!gradient.defined()) return;
    const auto found = now_.find(gradient.unsafeGetTensorImpl());
    if (found != now_.end()) sharded::own_gradient(found->second, cut, axis_);
  }

  Run play(const OperatorFlow::Call& call) {
    bool any = false;
    torch::jit::Stack stack;
    for (const c10::IValue& argument : call.arguments)
      stack.push_back(with_tensors(argument, [&](const at::Tensor& stand_in) {
        const auto found = now_.find(stand_in.unsafeGetTensorImpl());
        if (found == now_.end()) return stand_in;
        any = true;
        return found->second;
      }));
    Run run = Run::by_all;
    if (any)
      run = compute(call, stack);
    else
      stack = call.results;
    keep(call.results, stack);
    return run;
  }

  // Whose results depend on values, which are not there, has those that it had.
  Run compute(const OperatorFlow::Call& call, torch::jit::Stack& stack) {
    const auto& counts = axis_->counts();
    const std::string& name = call.op.operator_name().name;
    const auto counted = [&] {
      const auto found = counts.find(name);
      return found == counts.end() ? TensorAxis::Count{} : found->second;
    };
    const TensorAxis::Count before = counted();
    try {
      const KnownResults known(call.results, without_meta_);
      call.op.callBoxed(&stack);
    } catch (const StateError&) {  // which it would be in training
      cost_ = std::numeric_limits<double>::infinity();
      stack = call.results;
      return Run::whole;
    } catch (const std::exception&) {
      stack = call.results;
      return Run::whole;
    }
    const TensorAxis::Count after = counted();
    if (after.whole > before.whole) return Run::whole;
    return after.in_parts > before.in_parts ? Run::in_parts : Run::by_all;
  }

  void keep(const std::vector<c10::IValue>& stand_ins, const std::vector<c10::IValue>& results) {
    std::vector<at::Tensor> were, are;
    for (const c10::IValue& each : stand_ins) for_each_defined(each, [&](const at::Tensor& t) { were.push_back(t); });
    for (const c10::IValue& each : results) for_each_defined(each, [&](const at::Tensor& t) { are.push_back(t); });
    for (std::size_t i = 0; i < were.size(); ++i) {
      const bool cut = i < are.size() && were.size() == are.size() && are[i].sizes() == were[i].sizes() &&
                       sharded::is_sharded(are[i].unsafeGetTensorImpl());
      if (cut)
        now_[were[i].unsafeGetTensorImpl()] = are[i];
      else
        now_.erase(were[i].unsafeGetTensorImpl());
    }
  }

  const OperatorFlow& flow_;
  const std::vector<CutCandidate>& candidates_;
  int ranks_;
  std::shared_ptr<TensorAxis> axis_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> now_;  // by stand-in, of those that are cut
  WithoutMeta without_meta_;
  double cost_ = 0;
};

bool can_be_cut(const at::Tensor& parameter, const TensorCut& cut, int ranks) {
  return parameter.is_floating_point() && parameter.element_size() >= 2 && cut.dim < parameter.dim() &&
         parameter.size(cut.dim) > 0 && parameter.size(cut.dim) % (cut.blocks * ranks) == 0;
}

struct Choice {
  AxisCuts cuts;
  double cost = 0;
};

// Of the candidates, those of a kind, or of a part of it.
struct Members {
  std::vector<std::size_t> all;
  std::size_t used = SIZE_MAX;  // number of the first call that has any
  bool table = false;           // whose rows are looked up there
};

// By stand-in, the number of the first call that is given it.
std::unordered_map<const c10::TensorImpl*, std::size_t> first_uses(const OperatorFlow& flow) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> uses;
  for (std::size_t i = 0; i < flow.calls().size(); ++i)
    for (const c10::IValue& argument : flow.calls()[i].arguments)
      for_each_defined(argument, [&](const at::Tensor& tensor) { uses.try_emplace(tensor.unsafeGetTensorImpl(), i); });
  return uses;
}

// In the order in which they are used.
std::vector<Members> kinds_of(const OperatorFlow& flow, const std::vector<CutCandidate>& candidates) {
  std::map<std::string, Members> by_name;
  const auto uses = first_uses(flow);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Members& members = by_name[candidates[i].kind];
    members.all.push_back(i);
    if (const auto use = uses.find(candidates[i].stand_in.unsafeGetTensorImpl()); use != uses.end())
      members.used = std::min(members.used, use->second);
  }
  std::vector<Members> kinds;
  for (auto& [name, members] : by_name) {
    if (members.used < flow.calls().size())
      members.table = flow.calls()[members.used].op.operator_name().name == "aten::embedding";
    kinds.push_back(std::move(members));
  }
  std::ranges::stable_sort(kinds, {}, &Members::used);
  return kinds;
}

// Each by itself where they are few, else every other one of a kind.
std::vector<Members> finer(const std::vector<Members>& kinds, std::size_t candidates) {
  constexpr std::size_t few = 32;
  std::vector<Members> parts;
  for (const Members& members : kinds) {
    const std::size_t all = members.all.size(), count = candidates <= few ? all : std::min<std::size_t>(all, 2);
    std::vector<Members> of_kind(count);
    for (std::size_t i = 0; i < all; ++i) of_kind[i % count].all.push_back(members.all[i]);
    parts.insert(parts.end(), of_kind.begin(), of_kind.end());
  }
  return parts;
}

using BlocksBySize = std::map<std::int64_t, std::set<std::int64_t>>;

// What an operator divides a dimension into, or makes it of.
struct Division {
  std::int64_t size = 0, block = 0;
};

std::optional<Division> division_of(const OperatorFlow::Call& call) {
  const std::string_view name = call.op.operator_name().name;
  const auto tensors = [](const c10::IValue& value) {
    std::vector<at::Tensor> all;
    for_each_defined(value, [&](const at::Tensor& tensor) { all.push_back(tensor); });
    return all;
  };
  const auto along = [&](const c10::IValue& dim, const at::Tensor& whole, const at::Tensor& part) {
    const std::int64_t at = sharded_rules::from_front(dim.toInt(), whole.dim());
    return Division{whole.size(at), part.size(at)};
  };
  const std::vector<at::Tensor> results = call.results.empty() ? tensors({}) : tensors(call.results.front());
  if (results.empty()) return {};
  if (name == "aten::split" || name == "aten::split_with_sizes")
    return along(call.arguments[2], call.arguments[0].toTensor(), results.front());
  if (name == "aten::slice") return along(call.arguments[1], call.arguments[0].toTensor(), results.front());
  if (name == "aten::cat") {
    const std::vector<at::Tensor> joined = tensors(call.arguments[0]);
    const auto alike = [&](const at::Tensor& each) {
      return each.dim() == results.front().dim();
    };  // or it has nothing
    const auto first = std::ranges::find_if(joined, alike);
    return first == joined.end() ? std::nullopt : std::optional(along(call.arguments[1], results.front(), *first));
  }
  if (name != "aten::view" && name != "aten::_unsafe_view" && name != "aten::_reshape_alias") return {};
  // The last dimension, into several.
  const at::Tensor from = call.arguments[0].toTensor();
  if (from.dim() == 0) return {};
  const std::int64_t size = from.size(-1);
  std::int64_t inner = 1;
  for (std::int64_t dim = results.front().dim() - 1; dim >= 0; --dim) {
    if (inner > 1 && inner * results.front().size(dim) == size) return Division{size, inner};
    inner *= results.front().size(dim);
  }
  return {};
}

// By a dimension's size, into how many blocks of one length operators divide it.
BlocksBySize blocks_seen(const OperatorFlow& flow) {
  constexpr std::int64_t kMost = 4;
  BlocksBySize seen;
  for (const OperatorFlow::Call& call : flow.calls()) {
    const auto division = division_of(call);
    if (!division || division->block == 0 || division->size % division->block != 0) continue;
    const std::int64_t blocks = division->size / division->block;
    if (blocks > 1 && blocks <= kMost) seen[division->size].insert(blocks);
  }
  return seen;
}

class Search {
 public:
  Search(const OperatorFlow& flow, const std::vector<CutCandidate>& candidates, int ranks)
      : candidates_(candidates), ranks_(ranks), blocks_(blocks_seen(flow)), rehearsal_(flow, candidates, ranks) {}

  Choice none() { return with_cost(AxisCuts(candidates_.size())); }

  // One after the other as is best for what has run until the next is used: by columns first, and then by rows, since
  // what these bring is due only later. Of tables, by which what flows between layers begins in parts, or without them.
  Choice in_order(const std::vector<Members>& kinds, bool with_tables) {
    Choice choice{AxisCuts(candidates_.size())};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (kinds[i].table && !with_tables) continue;
      const auto later = [&](const Members& other) { return other.used > kinds[i].used; };
      const auto next = std::ranges::find_if(kinds, later);
      const std::size_t end = next == kinds.end() ? SIZE_MAX : next->used;
      choice.cost = rehearsal_.cost(choice.cuts, end);
      for (const TensorCut& way : ways(kinds[i])) try_on(choice, kinds[i], way, end);
    }
    return with_cost(std::move(choice.cuts));
  }

  // One after the other is cut as is best with the others as they are, until none is better otherwise.
  Choice improved(Choice best, const std::vector<Members>& together) {
    constexpr std::size_t kRounds = 6;
    for (std::size_t turn = 0, same = 0; turn < kRounds * together.size() && same < together.size(); ++turn, ++same) {
      const double before = best.cost;
      const Members& members = together[turn % together.size()];
      try_on(best, members, {}, SIZE_MAX);
      for (const TensorCut& way : ways(members)) try_on(best, members, way, SIZE_MAX);
      if (best.cost < before) same = 0;
    }
    return best;
  }

 private:
  // Columns, and then rows, each whole before in blocks.
  std::vector<TensorCut> ways(const Members& members) const {
    const at::Tensor& parameter = candidates_[members.all.front()].stand_in;
    std::vector<TensorCut> all;
    for (std::int64_t dim = 0; dim < std::min<std::int64_t>(parameter.dim(), 2); ++dim) {
      all.push_back({dim});
      if (const auto seen = blocks_.find(parameter.size(dim)); seen != blocks_.end())
        for (const std::int64_t blocks : seen->second) all.push_back({dim, blocks});
    }
    return all;
  }

  bool change(AxisCuts& cuts, const Members& members, const std::optional<TensorCut>& cut) const {
    const auto fits = [&](std::size_t i) { return can_be_cut(candidates_[i].stand_in, *cut, ranks_); };
    if (cut && !std::ranges::all_of(members.all, fits)) return false;
    for (const std::size_t i : members.all) cuts[i] = cut;
    return true;
  }

  Choice with_cost(AxisCuts cuts) {
    const double cost = rehearsal_.cost(cuts);
    return {std::move(cuts), cost};
  }

  void try_on(Choice& best, const Members& members, const std::optional<TensorCut>& cut, std::size_t end) {
    Choice other = best;
    if (!change(other.cuts, members, cut) || other.cuts == best.cuts) return;
    other.cost = rehearsal_.cost(other.cuts, end);
    if (other.cost < best.cost) best = std::move(other);
  }

  const std::vector<CutCandidate>& candidates_;
  int ranks_;
  BlocksBySize blocks_;
  Rehearsal rehearsal_;
};

}  // namespace

AxisCuts automatic_cuts(const OperatorFlow& flow, const std::vector<CutCandidate>& candidates, int ranks) {
  Search search(flow, candidates, ranks);
  std::vector<Members> kinds = kinds_of(flow, candidates);
  // What is added to products follows them.
  const auto matrix = [&](const Members& kind) { return candidates[kind.all.front()].stand_in.dim() > 1; };
  const auto vectors = std::stable_partition(kinds.begin(), kinds.end(), matrix);
  const std::vector<Members> biases(vectors, kinds.end());
  kinds.erase(vectors, kinds.end());
  Choice best = search.improved(search.in_order(kinds, /*with_tables=*/false), kinds);
  Choice other = search.improved(search.in_order(kinds, /*with_tables=*/true), kinds);
  if (other.cost < best.cost) best = std::move(other);
  best = search.improved(std::move(best), finer(kinds, candidates.size()));
  best = search.improved(std::move(best), biases);
  const Choice none = search.none();
  return best.cost < none.cost ? best.cuts : none.cuts;
}

}  // namespace zero

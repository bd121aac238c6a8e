#include "persist/tensor_tree.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/number.h"

namespace zero {
namespace {

constexpr int kMostLevels = 64;  // levels: what is deeper stays in one name

struct Entry {
  std::optional<std::string_view> rest;  // of the name; none: it ends here
  const StateTensor* tensor;
};

struct Branch {
  std::string_view name;
  std::vector<Entry> entries = {};
};

bool same(const TensorTree& a, const TensorTree& b) {
  const auto alike = [](const StateTensor* x, const StateTensor* y) {
    return x->key.kind == y->key.kind && x->key.part == y->key.part && x->dtype == y->dtype && x->shape == y->shape;
  };
  const auto child = [](const TensorTree& x, const TensorTree& y) {
    return x.name == y.name && x.alike == y.alike && same(x, y);
  };
  return std::ranges::equal(a.tensors, b.tensors, alike) && std::ranges::equal(a.children, b.children, child);
}

bool follows(const std::string& name, const std::string& before) {
  const auto a = read_number<std::int64_t>(before, 0, INT64_MAX - 1), b = read_number<std::int64_t>(name, 0, INT64_MAX);
  return a.fault.empty() && b.fault.empty() && b.value == a.value + 1;
}

void join_alike(std::vector<TensorTree>& children) {
  std::vector<TensorTree> joined;
  for (TensorTree& each : children) {
    TensorTree* const before = joined.empty() ? nullptr : &joined.back();
    if (before && follows(each.name, before->alike > 1 ? before->last : before->name) && same(*before, each)) {
      before->last = std::move(each.name);
      ++before->alike;
    } else {
      joined.push_back(std::move(each));
    }
  }
  children = std::move(joined);
}

// "a" that has nothing but "b" is "a.b".
void join_only_child(TensorTree& tree) {
  if (tree.alike > 1 || !tree.tensors.empty()) return;
  if (tree.children.size() != 1 || tree.children.front().alike > 1) return;
  TensorTree child = std::move(tree.children.front());
  child.name = tree.name + "." + child.name;
  tree = std::move(child);
}

TensorTree tree_of(std::string_view name, const std::vector<Entry>& entries, Layers layers, int depth) {
  TensorTree tree{.name = std::string(name)};
  std::vector<Branch> branches;
  std::map<std::string_view, std::size_t> known;
  for (const Entry& entry : entries) {
    if (!entry.rest) {
      tree.tensors.push_back(entry.tensor);
      tree.bytes += bytes_of(*entry.tensor);
      continue;
    }
    const std::size_t point = depth < kMostLevels ? entry.rest->find('.') : std::string_view::npos;
    const std::string_view part = entry.rest->substr(0, point);
    const auto [found, added] = known.try_emplace(part, branches.size());
    if (added) branches.push_back({part});
    const bool ends = point == std::string_view::npos;
    branches[found->second].entries.push_back(
        {ends ? std::nullopt : std::optional(entry.rest->substr(point + 1)), entry.tensor});
  }
  for (const Branch& branch : branches) {
    tree.children.push_back(tree_of(branch.name, branch.entries, layers, depth + 1));
    tree.bytes += tree.children.back().bytes;
  }
  if (layers == Layers::alike_as_one) join_alike(tree.children);
  for (TensorTree& child : tree.children) join_only_child(child);
  return tree;
}

}  // namespace

TensorTree tensor_tree(const std::vector<StateTensor>& tensors, Layers layers) {
  std::vector<Entry> entries;
  for (const StateTensor& each : tensors) entries.push_back({each.key.name, &each});
  return tree_of({}, entries, layers, 0);
}

std::int64_t bytes_of(const StateTensor& tensor) {
  return tensor.numel() * size_of(tensor.dtype);
}

}  // namespace zero

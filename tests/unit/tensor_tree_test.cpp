// The tree of a state's tensors.
#include "persist/tensor_tree.h"

#include <gtest/gtest.h>

namespace zero::tensor_tree_test {

// "name (last, xN) tensors bytes {children}"
std::string text_of(const TensorTree& tree) {
  std::string text = tree.name;
  if (tree.alike > 1) text += "-" + tree.last + " x" + std::to_string(tree.alike);
  text += " " + std::to_string(tree.tensors.size()) + " " + std::to_string(tree.bytes);
  if (tree.children.empty()) return text;
  text += " {";
  for (const TensorTree& child : tree.children) text += (text.ends_with("{") ? "" : ", ") + text_of(child);
  return text + "}";
}

StateTensor weight(const std::string& name, std::vector<std::int64_t> shape = {2}, Dtype dtype = Dtype::f32) {
  return {.key = {name}, .dtype = dtype, .shape = std::move(shape)};
}

std::vector<StateTensor> layers(int count) {
  std::vector<StateTensor> all{weight("embed.weight", {4, 2})};
  for (int i = 0; i < count; ++i)
    for (const char* name : {".wq.weight", ".wk.weight", ".norm"})
      all.push_back(weight("layers." + std::to_string(i) + name));
  return all;
}

TEST(TensorTree, IsOfThePartsOfNames) {
  std::vector<StateTensor> all = layers(1);
  all.push_back({.key = {"embed.weight", StateKind::moment, "0"}, .dtype = Dtype::bf16, .shape = {4, 2}});
  all.push_back(weight("embed"));
  const TensorTree tree = tensor_tree(all, Layers::all);
  EXPECT_EQ(text_of(tree), " 0 80 {embed 1 56 {weight 2 48}, layers.0 0 24 {wq.weight 1 8, wk.weight 1 8, norm 1 8}}");
  EXPECT_EQ(tree.children[0].children[0].tensors[1], &all[4]);
}

TEST(TensorTree, ShowsLayersThatAreAlikeOnce) {
  const std::vector<StateTensor> all = layers(12);
  EXPECT_EQ(text_of(tensor_tree(all, Layers::alike_as_one)),
            " 0 320 {embed.weight 1 32, layers 0 288 {0-11 x12 0 24 {wq.weight 1 8, wk.weight 1 8, norm 1 8}}}");
  EXPECT_EQ(tensor_tree(all, Layers::all).children[1].children.size(), 12u);
}

TEST(TensorTree, ShowsLayersApartThatDiffer) {
  std::vector<StateTensor> all = layers(6);
  all[1 + 3 * 2].shape = {1, 2};
  all[1 + 3 * 5].dtype = Dtype::i32;
  EXPECT_EQ(text_of(tensor_tree(all, Layers::alike_as_one).children[1]),
            "layers 0 144 {0-1 x2 0 24 {wq.weight 1 8, wk.weight 1 8, norm 1 8}, 2 0 24 {wq.weight 1 8, wk.weight 1 8, "
            "norm 1 8}, 3-4 x2 0 24 {wq.weight 1 8, wk.weight 1 8, norm 1 8}, 5 0 24 {wq.weight 1 8, wk.weight 1 8, "
            "norm 1 8}}");
}

TEST(TensorTree, JoinsNeighboursByNumberAlone) {
  const std::vector<StateTensor> all{weight("a.0.w"), weight("a.2.w"), weight("a.x.w"), weight("a.y.w"),
                                     weight("b.0.w"), weight("b.1.w"), weight("b.1.v")};
  EXPECT_EQ(text_of(tensor_tree(all, Layers::alike_as_one)),
            " 0 56 {a 0 32 {0.w 1 8, 2.w 1 8, x.w 1 8, y.w 1 8}, b 0 24 {0.w 1 8, 1 0 16 {w 1 8, v 1 8}}}");
}

TEST(TensorTree, JoinsLayersWithinLayers) {
  std::vector<StateTensor> all;
  for (const char* stage : {"0", "1"})
    for (const char* block : {"0", "1", "2"}) all.push_back(weight(std::string("s.") + stage + "." + block));
  EXPECT_EQ(text_of(tensor_tree(all, Layers::alike_as_one)), " 0 48 {s 0 48 {0-1 x2 0 24 {0-2 x3 1 8}}}");
}

TEST(TensorTree, TakesNamesOfAnyForm) {
  const std::string deep(100'000, '.');
  const std::vector<StateTensor> all{weight(""), weight("."), weight("a..b"), weight(deep),
                                     weight("18446744073709551616")};
  const TensorTree tree = tensor_tree(all, Layers::alike_as_one);
  EXPECT_EQ(tree.bytes, 40);
  EXPECT_TRUE(tensor_tree({}, Layers::all).children.empty());
}

}  // namespace zero::tensor_tree_test

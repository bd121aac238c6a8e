// Rules of which modules are units.
#include "zero/units.h"

#include <gtest/gtest.h>

namespace zero::units_test {

ModuleInfo module(std::string_view name, std::string_view type, std::int64_t numel = 10, bool in_container = false,
                  bool container = false) {
  return {name, type, numel, in_container, container};
}

TEST(UnitRules, TakeChildrenOfContainers) {
  const UnitRule rule = units_in_containers();
  EXPECT_TRUE(rule(module("layers.0", "Block", 10, true)));
  EXPECT_FALSE(rule(module("layers", "ModuleList", 10, false, true)));
  EXPECT_FALSE(rule(module("layers.0", "Sequential", 10, true, true)));
  EXPECT_FALSE(rule(module("embed", "Embedding")));
}

TEST(UnitRules, TakeTypes) {
  const UnitRule rule = units_of_types({"Block", "Head"});
  EXPECT_TRUE(rule(module("layers.0", "Block")));
  EXPECT_TRUE(rule(module("head", "Head")));
  EXPECT_FALSE(rule(module("layers.0", "BlockOfOthers")));
  EXPECT_FALSE(rule(module("", "block")));
}

TEST(UnitRules, TakeNames) {
  const UnitRule rule = units_named({"layers.*", "head", "*.0.inner"});
  EXPECT_TRUE(rule(module("layers.0", "A")));
  EXPECT_TRUE(rule(module("layers.11", "A")));
  EXPECT_TRUE(rule(module("head", "A")));
  EXPECT_TRUE(rule(module("encoder.0.inner", "A")));
  for (const char* other : {"", "layers", "layers.0.norm", "heads", "encoder.1.inner", "layer.0"})
    EXPECT_FALSE(rule(module(other, "A"))) << other;
  EXPECT_TRUE(units_named({""})(module("", "A")));
  EXPECT_FALSE(units_named({"*"})(module("a.b", "A")));
}

TEST(UnitRules, TakeSizes) {
  const UnitRule rule = units_by_size(10, 20);
  for (const std::int64_t numel : {10, 15, 20}) EXPECT_TRUE(rule(module("a", "A", numel))) << numel;
  for (const std::int64_t numel : {9, 21}) EXPECT_FALSE(rule(module("a", "A", numel))) << numel;
}

}  // namespace zero::units_test

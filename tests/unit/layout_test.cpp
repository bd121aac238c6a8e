#include "zero/layout.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "zero/error.h"

namespace zero::layout_test {

using Specs = std::vector<ParameterSpec>;

// Some layout of up to 24 parameters in up to 5 units, many of them tiny or empty.
Specs random_specs(std::mt19937_64& random) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  Specs specs;
  const std::int64_t count = 1 + below(24);
  for (std::int64_t i = 0; i < count; ++i) {
    ParameterSpec spec{.name = "p" + std::to_string(i), .unit = "u" + std::to_string(below(5))};
    spec.numel = below(4) == 0 ? 0 : below(3) == 0 ? below(5000) : below(70);
    if (below(5) == 0) spec.dtype = Dtype::bf16;
    if (below(5) == 0) spec.trainable = false;
    specs.push_back(std::move(spec));
  }
  return specs;
}

template <class Check>
void for_random_layouts(Check check) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    const Specs specs = random_specs(random);
    for (const int ranks : {1, 2, 3, 4, 5, 7, 16, 24, 64, 100, 128}) check(specs, Layout(specs, ranks));
  }
}

TEST(Layout, EveryElementIsOwnedExactlyOnce) {
  for_random_layouts([](const Specs& specs, const Layout& layout) {
    std::map<std::string, std::int64_t> reached;  // by name, in rank order
    for (const UnitLayout& unit : layout.units()) {
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        for (const Range& range : unit.owned(rank)) {
          ASSERT_LT(range.begin, range.end);
          ASSERT_EQ(range.begin, reached[range.name]);
          reached[range.name] = range.end;
        }
      }
    }
    for (const ParameterSpec& spec : specs) ASSERT_EQ(reached[spec.name], spec.numel);
  });
}

TEST(Layout, NamesAndOffsetsGoBothWays) {
  for_random_layouts([](const Specs& specs, const Layout& layout) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const Layout::Location where = layout.find(specs[i].name);
      ASSERT_EQ(where, layout.at(static_cast<int>(i)));
      const UnitLayout& unit = layout.unit(where.unit);
      const Slot& slot = unit.slot(where.slot);
      ASSERT_EQ(slot.name, specs[i].name);
      ASSERT_EQ(slot.index, static_cast<int>(i));
      ASSERT_EQ(unit.dtype(), specs[i].dtype);
      ASSERT_EQ(unit.trainable(), specs[i].trainable);
    }
    for (const UnitLayout& unit : layout.units()) {
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        for (const Range& range : unit.owned(rank)) {
          ASSERT_EQ(layout.owner(range.name, range.begin), rank);
          ASSERT_EQ(layout.owner(range.name, range.end - 1), rank);
        }
      }
    }
  });
}

TEST(Layout, PiecesAndGapsCoverTheUnit) {
  for_random_layouts([](const Specs&, const Layout& layout) {
    for (const UnitLayout& unit : layout.units()) {
      std::map<std::int64_t, std::int64_t> stretches;
      for (const Piece& piece : unit.pieces()) stretches[piece.begin] = piece.end;
      for (const auto& [begin, end] : unit.gaps()) stretches[begin] = end;
      std::int64_t reached = 0;
      for (const auto& [begin, end] : stretches) {
        ASSERT_EQ(begin, reached);
        ASSERT_GT(end, begin);
        reached = end;
      }
      ASSERT_EQ(reached, unit.length());
    }
  });
}

TEST(Layout, StartsAndSlicesAreAligned) {
  for_random_layouts([](const Specs&, const Layout& layout) {
    std::int64_t numel = 0, length = 0;
    for (const UnitLayout& unit : layout.units()) {
      for (const Slot& slot : unit.slots()) ASSERT_EQ(slot.begin % UnitLayout::kAlign, 0);
      ASSERT_EQ(unit.shard_length() * layout.ranks(), unit.length());
      ASSERT_EQ(unit.shard_length() % 16, 0);
      ASSERT_EQ(unit.length() == 0, unit.numel() == 0);
      ASSERT_EQ(unit.bytes(), unit.length() * size_of(unit.dtype()));
      numel += unit.numel();
      length += unit.length();
    }
    ASSERT_EQ(layout.numel(), numel);
    ASSERT_EQ(layout.length(), length);
  });
}

TEST(Layout, PowersOfTwoUpTo64ShareOneLength) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    const Specs specs = random_specs(random);
    const Layout alone(specs, 1);
    for (int ranks = 2; ranks <= 64; ranks *= 2) {
      const Layout layout(specs, ranks);
      for (std::size_t u = 0; u < alone.units().size(); ++u) {
        ASSERT_EQ(layout.units()[u].length(), alone.units()[u].length());
        ASSERT_EQ(layout.units()[u].name(), alone.units()[u].name());
      }
    }
  }
}

TEST(Layout, LengthIsTheLeastMultiple) {
  const Specs specs{{.name = "w", .numel = 1000, .unit = "u"}, {.name = "b", .numel = 30, .unit = "u"}};
  EXPECT_EQ(Layout(specs, 1).length(), 2048);  // b ends at 1054
  EXPECT_EQ(Layout(specs, 64).length(), 2048);
  EXPECT_EQ(Layout(specs, 3).length(), 1056);  // 22 * 48
  EXPECT_EQ(Layout(specs, 5).length(), 1120);  // 14 * 80
  EXPECT_EQ(Layout(specs, 128).length(), 2048);
}

TEST(Layout, FewerElementsThanRanks) {
  const Specs specs{{.name = "scale", .numel = 3, .unit = "u"}};
  const Layout layout(specs, 100);
  const UnitLayout& unit = layout.units().front();
  EXPECT_EQ(unit.shard_length(), 16);
  EXPECT_EQ(unit.owned(0), (std::vector<Range>{{"scale", 0, 3}}));
  for (int rank = 1; rank < 100; ++rank) EXPECT_TRUE(unit.pieces(rank).empty());
  EXPECT_EQ(unit.gaps().size(), 1u);
}

TEST(Layout, ParametersWithoutElementsAreLegal) {
  const Specs specs{{.name = "none", .numel = 0, .unit = "a"},
                    {.name = "w", .numel = 40, .unit = "b", .read_in_backward = false},
                    {.name = "empty", .numel = 0, .unit = "b", .read_in_backward = true},
                    {.name = "v", .numel = 1, .unit = "b", .read_in_backward = false}};
  const Layout layout(specs, 4);
  ASSERT_EQ(layout.units().size(), 2u);
  const UnitLayout& none = layout.units()[0];
  EXPECT_EQ(none.length(), 0);
  EXPECT_TRUE(none.pieces(0).empty());
  EXPECT_TRUE(none.pieces().empty());
  EXPECT_TRUE(none.gaps().empty());
  EXPECT_FALSE(none.read_in_backward());
  const UnitLayout& some = layout.units()[1];
  EXPECT_FALSE(some.read_in_backward());
  EXPECT_EQ(some.slots().size(), 3u);
  EXPECT_EQ(some.pieces().size(), 2u);
  EXPECT_EQ(layout.find("empty"), (Layout::Location{1, 1}));
  EXPECT_THROW(layout.owner("empty", 0), ConfigError);
}

TEST(Layout, NoParametersNoUnits) {
  const Layout layout(Specs{}, 4);
  EXPECT_TRUE(layout.units().empty());
  EXPECT_EQ(layout.length(), 0);
}

TEST(Layout, AUnitIsReadInBackwardIfAnyOfItsParametersIs) {
  const Specs specs{{.name = "table", .numel = 8, .unit = "u", .read_in_backward = false},
                    {.name = "w", .numel = 8, .unit = "u"},
                    {.name = "embedding", .numel = 8, .unit = "v", .read_in_backward = false}};
  const Layout layout(specs, 2);
  EXPECT_TRUE(layout.units()[0].read_in_backward());
  EXPECT_FALSE(layout.units()[1].read_in_backward());
}

TEST(Layout, AUnitSplitsByDtypeAndTrainability) {
  const Specs specs{{.name = "a", .numel = 8, .unit = "u"},
                    {.name = "b", .numel = 8, .dtype = Dtype::bf16, .unit = "u"},
                    {.name = "other", .numel = 8, .unit = "u#frozen"},
                    {.name = "c", .numel = 8, .trainable = false, .unit = "u"},
                    {.name = "d", .numel = 8, .dtype = Dtype::bf16, .trainable = false, .unit = "u"},
                    {.name = "e", .numel = 8, .unit = "u"}};
  const Layout layout(specs, 2);
  std::vector<std::string> names;
  for (const UnitLayout& unit : layout.units()) names.push_back(unit.name());
  EXPECT_EQ(names, (std::vector<std::string>{"u", "u#bf16", "u#frozen", "u#frozen#", "u#bf16#frozen"}));
  EXPECT_EQ(layout.find("e"), (Layout::Location{0, 1}));
}

TEST(Layout, MoreThanTwoToThe31Elements) {
  const std::int64_t huge = (std::int64_t{1} << 33) + 5;
  const Specs specs{{.name = "a", .numel = huge, .unit = "u"}, {.name = "b", .numel = huge, .unit = "u"}};
  const Layout layout(specs, 8);
  const UnitLayout& unit = layout.units().front();
  EXPECT_EQ(layout.numel(), 2 * huge);
  EXPECT_EQ(unit.slots()[1].begin, (std::int64_t{1} << 33) + 32);
  EXPECT_EQ(unit.length(), (std::int64_t{1} << 34) + 1024);
  EXPECT_EQ(layout.owner("b", huge - 1), 7);
  EXPECT_EQ(unit.owned(7).back().end, huge);
}

TEST(Layout, FaultsAreListedAtOnce) {
  const Specs specs{
      {.name = "", .numel = 1, .unit = "u"}, {.name = "w", .numel = -1, .unit = "u"}, {.name = "w", .unit = "v"}};
  try {
    const Layout layout(specs, 0);
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const std::string_view words :
         {"not 0", "has no name", "'w' has -1 elements", "two parameters are named 'w'"}) {
      EXPECT_NE(text.find(words), std::string::npos) << words;
    }
  }
  const Layout layout(Specs{{.name = "w", .numel = 2, .unit = "u"}}, 2);
  EXPECT_THROW(layout.find("x"), ConfigError);
  EXPECT_THROW(layout.owner("w", 2), ConfigError);
  EXPECT_THROW(layout.owner("w", -1), ConfigError);
}

}  // namespace zero::layout_test

// How many elements go through a buffer at once.
#include "partition/staging.h"

#include <gtest/gtest.h>

#include "base/elements.h"
#include "covering.h"

namespace zero::staging_test {

// An operation's bytes, the page, bytes of an element in all parts, parts.
using Case = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

std::vector<Case> cases() {
  return test::covering(std::vector<std::int64_t>{2048, 4096, 1 << 18, 1 << 20}, std::vector<std::int64_t>{1, 4096},
                        std::vector<std::int64_t>{1, 6, 12, 18, 24, 32}, std::vector<std::int64_t>{1, 3, 5, 8});
}

// As many as there is room for, in steps, with what each part loses on its first and last page.
TEST(StretchesOfParts, FillABuffer) {
  for (const auto& [transfer, page, bytes, parts] : cases()) {
    const StagingShape shape{transfer, StagingShape::kArrays, page};
    const std::int64_t step = shape.elements(), lost = page > 1 ? 2 * page : 128;
    for (const std::int64_t count : {step, 3 * step + 5, std::int64_t{1} << 30}) {
      SCOPED_TRACE(testing::Message() << transfer << " " << page << " " << bytes << " " << parts << " " << count);
      const std::int64_t elements = shape.elements_of(count, count * bytes, parts);
      EXPECT_EQ(elements % step, 0);
      EXPECT_GE(elements, step);
      if (elements > step) {
        EXPECT_LE(elements * bytes + parts * lost, shape.bytes());
      }
      EXPECT_GT((elements + step) * bytes + parts * lost, shape.bytes());
    }
  }
}

// AdamW with main weights, in bf16: of what StagedPass would place, wherever its parts begin on their pages.
TEST(StretchesOfParts, FitWhereverPartsBegin) {
  const StagingShape shape{1 << 20, StagingShape::kArrays, 4096};
  EXPECT_EQ(shape.elements(), 131072);
  EXPECT_EQ(shape.elements_of(1 << 22, std::int64_t{12} << 22, 3), 262144);
  for (const std::int64_t begin : {0, 64, 4032}) {
    std::int64_t taken = 0;
    for (int part = 0; part < 3; ++part) taken = round_up(taken, std::int64_t{4096}) + begin + 262144 * 4;
    EXPECT_LE(taken, shape.bytes());
  }
}

// What is moved in full stretches is cut nowhere but at multiples of what a scale of 8-bit moments is for.
TEST(StretchesOfParts, AreWholeBlocksOfMoments) {
  for (const std::int64_t transfer : {2048, 65536})
    for (const std::int64_t bytes : {3, 7, 9})
      EXPECT_EQ((StagingShape{transfer, StagingShape::kArrays, 1}.elements_of(1000, 1000 * bytes, 4) % 256), 0);
}

// What stays on the device comes to the host where it computes all updates, and only there.
TEST(BuffersOfUpdates, HaveRoomForWhatStaysOnADevice) {
  const auto arrays = [](const StateTiers& tiers, bool on_device) {
    return staging_of_update(tiers, on_device, 1 << 20, 1).arrays;
  };
  const StateTiers all{Tier::host, Tier::host, Tier::host, false}, divided{Tier::host, Tier::host, Tier::host, true};
  EXPECT_EQ(arrays(all, true), 1) << "of first values";
  EXPECT_EQ(arrays(divided, true), StagingShape::kArrays + 1);
  const StateTiers on_disk{Tier::disk, Tier::disk, Tier::disk, true};
  EXPECT_EQ(arrays(on_disk, false), StagingShape::kArrays + 2);
}

TEST(DiskDepth, IsOneAtLeast) {
  EXPECT_EQ(disk_depth(std::int64_t{1} << 18), 32);
  EXPECT_EQ(disk_depth(kDiskUnderWay), 1);
  EXPECT_EQ(disk_depth(kDiskUnderWay * 2), 1);
}

}  // namespace zero::staging_test

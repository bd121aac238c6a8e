// manifest.json: to the bit there and back, and one error with its place for everything else.
#include "persist/manifest.h"

#include <gtest/gtest.h>

#include "persist/manifest_words.h"
#include "zero/error.h"

namespace zero::test::manifest_test {

Manifest sample() {
  Manifest manifest;
  manifest.library = library_version();
  manifest.plan = "zero3, \"quoted\"\n";
  manifest.mesh = MeshShape(8, {.shard = 2, .tensor = 2});
  manifest.scalars.steps = 12;
  manifest.scalars.seed = ~std::uint64_t{0};
  manifest.scalars.loss_scaler = {65536, 1, 2};
  manifest.scalars.updates["a"] = 12;
  manifest.scalars.optimizers["a"] = "adam \"mine\"";
  manifest.scalars.float8["a"] = {{1.5, 0.1}, {2}};
  manifest.user = R"({"x": [1, 2]})";
  manifest.files = {{"rank-00000.safetensors", 200, 100, {1, 2}}, {"rank-00001.safetensors", 36, 16, {3, 4}}};
  StateTensor first{{"a", StateKind::moment, "0"}, Dtype::f32, {5, 5}};
  first.blocks = StateBlocks{256, 3, {1, 0}};
  manifest.tensors.push_back({first, {{{0, 100, 80, {5, 6}}, {{0, 4, 5, 5}}}, {{1, 16, 20, {7, 8}}, {{4, 1, 5, 5}}}}});
  manifest.tensors.push_back({{{"empty", StateKind::buffer}, Dtype::i64, {0, 4}}});
  manifest.user_tensors = {{"mine", Dtype::bf16, {10}, {{0, 180, 20, {9, 10}}}}};
  return manifest;
}

// With a checksum that fits.
std::string sealed(std::string text) {
  text.resize(text.size() - checksum_member({}).size());
  return text + checksum_member(text);
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = to_text(sample());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return sealed(text.replace(at, from.size(), to));
}

std::string fault_of_text(const std::string& text) {
  try {
    manifest_of(text, "M");
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "none";
}

TEST(Manifests, ComeBack) {
  EXPECT_EQ(manifest_of(to_text(sample()), "M"), sample());
  const RankPart part{{"rank-00001.safetensors", 36, 16, {3, 4}},
                      {{0, {{0, 16, 20, {7, 8}}, {{4, 1, 5, 5}}}}},
                      {{"mine", Dtype::bf16, {10}, {{0, 180, 20, {9, 10}}}}}};
  EXPECT_EQ(rank_part_of(to_text(part), "P"), part);
}

// Before state said whose it is.
TEST(Manifests, OfTheFirstSchemaAreRead) {
  Manifest first = sample();
  first.scalars.optimizers.clear();
  std::string text = to_text(first);
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"zero.checkpoint/2", "zero.checkpoint/1"},
                                 {",\n  \"optimizers\": {}", ""}}) {
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
  }
  EXPECT_EQ(manifest_of(sealed(text), "M"), first);
}

TEST(Manifests, AreRefusedWithTheirFaultAndItsPlace) {
  const std::vector<std::array<std::string, 3>> cases{
      {"\"steps\": 12", "\"steps\": 12.0", "M: scalars.steps: is no integer of 64 bits"},
      {"\"steps\": 12", "\"steps\": -1", "M: scalars.steps: -1 is not between 0 and 9223372036854775807"},
      {"\"steps\": 12", "\"steps\": 9223372036854775808", "M: scalars.steps: is no integer of 64 bits"},
      {"\"steps\": 12", "\"steps\": 12, \"more\": 1", "M: scalars: the member 'more' is not known"},
      {"\"steps\": 12, ", "", "M: scalars: the member 'steps' is missing"},
      {"\"steps\": 12", "\"steps\": 12, \"steps\": 12", "M: has the member 'steps' twice"},
      {"zero.checkpoint/2", "zero.checkpoint/3",
       "M: schema: 'zero.checkpoint/3' is not zero.checkpoint/2: another version of libzero wrote it"},
      {"zero.checkpoint/2", "zero.checkpoint/1", "M: scalars: the member 'optimizers' is not known"},
      {"65536.0", "\"0x3ff0000000000000\"", "M: scalars.loss_scaler.value: is no number"},
      {"\"ranks\": 8", "\"ranks\": 6", "M: mesh: is no mesh of so many ranks"},
      {"\"tensor\": 2", "\"tensor\": 3", "M: mesh: is no mesh of so many ranks"},
      {"\"kind\": \"moment\"", "\"kind\": \"moments\"", "M: tensors[0].kind: 'moments' is not known"},
      {"\"dtype\": \"fp32\"", "\"dtype\": \"fp31\"", "M: tensors[0].dtype: 'fp31' is not known"},
      {"\"shape\": [5, 5]", "\"shape\": [5, 6]", "M: a moment 0: element 25 is in no piece"},
      {"\"shape\": [5, 5]", "\"shape\": [5, 4]", "M: a moment 0 has no element 23"},
      {"\"shape\": [5, 5]", "\"shape\": [4294967296, 4294967296]",
       "M: tensors[0].shape: has more elements than can be counted"},
      {"[4, 5, 5, 5]", "[3, 4, 5, 5]", "M: a moment 0: element 3 is there twice"},
      {"[4, 5, 5, 5]", "[4, 5, 5, 1]", "M: tensors[0].pieces[1].elements[0]: is no sequence of ranges"},
      {"[4, 5, 5, 5]", "[4, 5, 5, 9223372036854775807]",
       "M: tensors[0].pieces[1].elements[0]: is no sequence of ranges"},
      {"[4, 5, 5, 5]", "[5, 4]", "M: tensors[0].pieces[1].elements[0]: is no range of elements"},
      {"[[4, 5, 5, 5]]", "[[4, 5], [4, 5]]",
       "M: tensors[0].pieces[1].elements[1]: begins before the range before it ends"},
      {"[[4, 5, 5, 5]]", "[]", "M: a moment 0: a piece of 0 elements has 20 bytes"},
      {"\"file\": 1", "\"file\": 2", "M: a moment 0 is in file 2, which is not listed"},
      {"\"offset\": 16, \"bytes\": 20", "\"offset\": 17, \"bytes\": 20",
       "M: a moment 0 is in bytes 17 and so many as 20 of rank-00001.safetensors, which has none there"},
      {"\"bytes\": 36", "\"bytes\": 37", "M: rank-00001.safetensors: byte 36 is in no piece, or one before it in two"},
      {"\"name\": \"rank-00001.safetensors\"", "\"name\": \"../secret\"",
       "M: files[1]: is no name of a file of tensors"},
      {"\"name\": \"rank-00001.safetensors\"", "\"name\": \"rank-00000.safetensors\"",
       "M: file 'rank-00000.safetensors' is listed twice"},
      {"\"user_tensors\": [", "\"user_tensors\": [[[[[[[[[[[[[[[[[", "M: is nested too deeply"}};
  for (const auto& [from, to, fault] : cases) EXPECT_EQ(fault_of_text(changed(from, to)), fault);
  EXPECT_NE(fault_of_text(changed("{", "[")).find("parse error at line"), std::string::npos);
  EXPECT_NE(fault_of_text(changed("\"ranks\"", std::string("\0\"ranks\"", 8))).find("zero byte"), std::string::npos);
  EXPECT_NE(fault_of_text(to_text(sample()) + "\n").find("is damaged or cut off"), std::string::npos);
  EXPECT_EQ(fault_of_text("{}"), "M: is cut off: it has 2 bytes");
}

TEST(Manifests, AreNotWrittenOfWhatIsNoText) {
  Manifest manifest = sample();
  manifest.tensors[0].tensor.key.name = "\xff";
  EXPECT_THROW(to_text(manifest), CheckpointError);
}

TEST(Checksums, AreXxh3OfTheBytes) {
  // Known values of XXH3_128bits for an empty input, with the default secret and no seed.
  EXPECT_EQ(text_of(checksum_of("")), "99aa06d3014798d86001c324468d497f");
  std::string bytes(100'000, 'a');
  Hasher hasher;
  hasher.add(bytes.data(), 1);
  hasher.add(bytes.data() + 1, 99'999);
  EXPECT_EQ(hasher.result(), checksum_of(bytes));
  hasher.restart();
  EXPECT_EQ(hasher.result(), checksum_of(""));
  EXPECT_EQ(checksum_named(text_of(checksum_of(bytes))), checksum_of(bytes));
  EXPECT_EQ(checksum_named("99AA06d3014798d86001c324468d497f"), std::nullopt);
  EXPECT_EQ(checksum_named("99"), std::nullopt);
}

TEST(ElementRuns, FindAndCutWhatRepeats) {
  ElementRuns runs;
  for (std::int64_t i = 0; i < 5; ++i) append(runs, 10 * i + 2, 10 * i + 5);
  append(runs, 60, 61);
  append(runs, 61, 64);
  EXPECT_EQ(runs, (ElementRuns{{2, 3, 10, 5}, {60, 4}}));
  EXPECT_EQ(below(runs, 70), 19);
  std::int64_t count = 0;
  for (std::int64_t e = 0; e < 70; ++e) {
    EXPECT_EQ(below(runs, e), count) << e;
    const bool inside = (e < 50 && e % 10 >= 2 && e % 10 < 5) || (e >= 60 && e < 64);
    if (inside) {
      EXPECT_EQ(element_at(runs, count), e);
      ++count;
    }
    for (std::int64_t end = e; end < 70; ++end) {
      std::int64_t told = 0, last_end = e;
      each_range(runs, e, end, [&](std::int64_t first, std::int64_t last) {
        EXPECT_LE(last_end, first);
        EXPECT_LE(last, end);
        told += last - first;
        last_end = last;
      });
      EXPECT_EQ(told, below(runs, end) - below(runs, e));
    }
  }
}

}  // namespace zero::test::manifest_test

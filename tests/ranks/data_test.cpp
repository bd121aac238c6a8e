#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "models/data.h"
#include "zero/error.h"

namespace data_test {

namespace fs = std::filesystem;
using models::Batch;
using models::Corpus;
using models::CorpusOptions;
using models::Split;
using models::TokenFormat;
using models::TokenSource;

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::vector<T> counting(std::int64_t count, T first = 0) {
  std::vector<T> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::string llmc_header(std::int32_t magic, std::int32_t tokens, std::int32_t version = 1) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = tokens;
  return raw(header);
}

class Data : public testing::Test {
 protected:
  Data()
      : folder_(fs::path(testing::TempDir()) / ("zero-data-" + std::to_string(::getpid()) + "-" +
                                                testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directories(folder_);
  }
  ~Data() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  // Tokens 0, 1, 2, ...: a token tells its place.
  Corpus places(std::int64_t tokens, CorpusOptions options = {}) const {
    return Corpus(TokenSource::open(write("places.u32", raw(counting<std::uint32_t>(tokens)))), options);
  }
  void expect_fault(auto&& action, const std::string& message) const {
    try {
      action();
      FAIL() << message;
    } catch (const zero::ConfigError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(message), std::string::npos) << what;
      EXPECT_FALSE(error.hint().empty());
    }
  }

  fs::path folder_;
};

std::vector<std::int64_t> all(const TokenSource& source) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(source.size()));
  source.read(0, tokens);
  return tokens;
}

std::string as_text(const TokenSource& source) {
  const std::vector<std::int64_t> tokens = all(source);
  return {tokens.begin(), tokens.end()};
}

// Places where the windows begin.
std::vector<std::int64_t> starts(const Batch& batch) {
  const at::Tensor first = batch.inputs.select(1, 0).contiguous();
  return {first.const_data_ptr<std::int64_t>(), first.const_data_ptr<std::int64_t>() + first.numel()};
}

TEST_F(Data, ReadsTextByBytes) {
  const TokenSource source = TokenSource::open(write("a.txt", "ab\xff\n"));
  EXPECT_TRUE(source.text());
  EXPECT_EQ(all(source), (std::vector<std::int64_t>{'a', 'b', 255, '\n'}));
}

TEST_F(Data, ReadsAFolderInTheOrderOfItsRelativePaths) {
  write("b.txt", "<b>");
  write("a/z.txt", "<a/z>");
  write("a/b/c.h", "<a/b/c>");
  write("a.txt", "<a.txt>");
  write("B.txt", "<B>");
  write("empty.txt", "");
  EXPECT_EQ(as_text(TokenSource::open(folder_)), "<B><a.txt><a/b/c><a/z><b>");
  EXPECT_EQ(as_text(TokenSource::open(folder_, TokenFormat::text, {".h"})), "<a/b/c>");
  EXPECT_EQ(as_text(TokenSource::open(folder_.string() + "/")), "<B><a.txt><a/b/c><a/z><b>");
}

TEST_F(Data, ReadsAcrossFiles) {
  write("1", "abc");
  write("2", "d");
  write("3", "efg");
  const TokenSource source = TokenSource::open(folder_);
  EXPECT_EQ(source.files(), 3);
  std::vector<std::int64_t> middle(4);
  source.read(2, middle);
  EXPECT_EQ(middle, (std::vector<std::int64_t>{'c', 'd', 'e', 'f'}));
  EXPECT_EQ(source.where(4), "3, token 0");
}

TEST_F(Data, ReadsSixteenAndThirtyTwoBits) {
  const std::vector<std::uint16_t> narrow = {1, 65535, 256};
  const std::vector<std::uint32_t> wide = {1, 4294967295U, 65536};
  EXPECT_EQ(all(TokenSource::open(write("a.bin", raw(narrow)))), (std::vector<std::int64_t>{1, 65535, 256}));
  EXPECT_EQ(all(TokenSource::open(write("a.u16", raw(narrow)))), (std::vector<std::int64_t>{1, 65535, 256}));
  EXPECT_EQ(all(TokenSource::open(write("a.u32", raw(wide)))), (std::vector<std::int64_t>{1, 4294967295, 65536}));
  EXPECT_EQ(all(TokenSource::open(write("b.bin", raw(wide)), TokenFormat::u32)),
            (std::vector<std::int64_t>{1, 4294967295, 65536}));
}

TEST_F(Data, SkipsTheHeadersOfLlmC) {
  const auto tokens = counting<std::uint16_t>(50, 7);
  const auto wide = counting<std::uint32_t>(50, 100007);
  EXPECT_EQ(all(TokenSource::open(write("a.bin", llmc_header(20240520, 50) + raw(tokens)))),
            counting<std::int64_t>(50, 7));
  EXPECT_EQ(all(TokenSource::open(write("b.bin", llmc_header(20240801, 50, 7) + raw(wide)))),
            counting<std::int64_t>(50, 100007));
  expect_fault([&] { TokenSource::open(write("c.bin", llmc_header(20240520, 51) + raw(tokens))); },
               "has 1124 bytes, but its header announces 1126 bytes");
}

TEST_F(Data, ReadsFoldersOfTokens) {
  const auto first = counting<std::uint16_t>(50, 7), second = counting<std::uint16_t>(30, 57);
  write("shards/train_000001.bin", llmc_header(20240520, 50) + raw(first));
  write("shards/train_000002.bin", llmc_header(20240520, 30) + raw(second));
  EXPECT_EQ(all(TokenSource::open(folder_ / "shards")), counting<std::int64_t>(80, 7));
  EXPECT_FALSE(TokenSource::open(folder_ / "shards").text());
  write("named/a.u16", raw(first));
  write("named/b", llmc_header(20240520, 30) + raw(second));
  EXPECT_EQ(all(TokenSource::open(folder_ / "named")), counting<std::int64_t>(80, 7));
  const auto wide = counting<std::uint32_t>(50, 100007);
  write("wide/a.bin", llmc_header(20240801, 50, 7) + raw(wide));
  EXPECT_EQ(all(TokenSource::open(folder_ / "wide")), counting<std::int64_t>(50, 100007));
}

TEST_F(Data, FaultsOfFormats) {
  const auto tokens = counting<std::uint16_t>(50, 7);
  const auto opens = [&](const fs::path& path) { return [=] { TokenSource::open(path); }; };
  expect_fault(opens(write("a.bin", llmc_header(20240520, 50, 99) + raw(tokens))),
               "has a header of llm.c of version 99; of 16 bit tokens version 1 is known");
  expect_fault(opens(write("b.bin", llmc_header(20240801, 25, 1) + raw(tokens))),
               "of 32 bit tokens version 7 is known");
  expect_fault(opens(write("c.bin", llmc_header(20240520, 50).substr(0, 100))), "ends within its header of llm.c");
  expect_fault(opens(write("d.bin", llmc_header(20240522, 50) + raw(tokens))), "holds llm.c's questions");
  write("mixed/a.bin", raw(tokens));
  write("mixed/b.txt", "text");
  expect_fault(opens(folder_ / "mixed"),
               "b.txt is text, and " + (folder_ / "mixed/a.bin").string() + " is 16 bit tokens");
  write("widths/a.bin", raw(tokens));
  write("widths/b.u32", raw(tokens));
  expect_fault(opens(folder_ / "widths"), "b.u32 is 32 bit tokens, and");
}

TEST_F(Data, FaultsOfSources) {
  expect_fault([&] { TokenSource::open(folder_ / "none"); }, "none: No such file or directory");
  expect_fault([&] { TokenSource::open(folder_); }, "is empty");
  expect_fault([&] { TokenSource::open(write("empty.txt", "")); }, "empty.txt is empty");
  expect_fault([&] { TokenSource::open(folder_, TokenFormat::automatic, {".c"}); }, "is empty");
  expect_fault([&] { TokenSource::open(write("odd.bin", "abc")); },
               "odd.bin has 3 bytes, which does not divide into tokens of 2 bytes");
  expect_fault([&] { TokenSource::open(write("odd.u32", "abcdef")); },
               "odd.u32 has 6 bytes, which does not divide into tokens of 4 bytes");
}

TEST_F(Data, FaultsOfCorpora) {
  expect_fault([&] { places(20).batch(0, 1, 19); },
               "the training part of " + (folder_ / "places.u32").string() + " has 19 tokens; one sequence needs 20");
  expect_fault([&] { places(20).evaluation_batches(1, 1); }, "the held-out part of");
  expect_fault([&] { places(200).evaluation_batches(10, 1); }, "an evaluation batch of 10 sequences");
  expect_fault([&] { places(20, {.held_out = 1}); }, "the held-out fraction is 1");
  expect_fault([&] { places(20).batch(0, 0, 4); }, "batch 0 of 0 sequences");
  expect_fault([&] { places(20).batch(0, 1, 0); }, "a sequence of 0 tokens");
}

TEST_F(Data, NamesTheTokenOutsideTheVocabulary) {
  const Corpus corpus = places(40, {.held_out = 0, .vocab = 39});
  expect_fault(
      [&] {
        for (int i = 0; i < 13; ++i) corpus.batch(i, 1, 3);
      },
      "holds token 39 (places.u32, token 39), outside the vocabulary of 39");
  const fs::path text = write("a.txt", "ASCII only, but for this: \xe9");
  EXPECT_NO_THROW(Corpus(TokenSource::open(text), {.vocab = 256}));
  expect_fault([&] { Corpus(TokenSource::open(text), {.vocab = 128}); }, "holds token 233 (a.txt, token 26)");
}

TEST_F(Data, TargetsFollowTheInputs) {
  const Batch batch = places(1000).batch(3, 4, 10);
  EXPECT_EQ(batch.inputs.sizes(), (std::vector<std::int64_t>{4, 10}));
  EXPECT_EQ(batch.inputs.scalar_type(), at::kLong);
  EXPECT_TRUE(batch.targets.equal(batch.inputs + 1));
}

TEST_F(Data, ABatchDependsOnItsIndexAlone) {
  const Corpus corpus = places(1000), again = places(1000);
  const at::Tensor late = corpus.batch(5, 2, 10).inputs;
  corpus.batch(1, 2, 10);
  EXPECT_TRUE(again.batch(5, 2, 10).inputs.equal(late));
  EXPECT_FALSE(again.batch(6, 2, 10).inputs.equal(late));
  EXPECT_FALSE(places(1000, {.seed = 1}).batch(5, 2, 10).inputs.equal(late));
}

TEST_F(Data, EverySplitOfTheGlobalBatchSeesTheSameRows) {
  const Corpus corpus = places(1000);
  const at::Tensor whole = corpus.batch(3, 8, 10).inputs;
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < 4; ++rank) parts.push_back(corpus.batch(3 * 4 + rank, 2, 10).inputs);
  EXPECT_TRUE(at::cat(parts).equal(whole));
}

TEST_F(Data, AnEpochRepeatsNothingAndEpochsDiffer) {
  const Corpus corpus = places(1000);
  const std::int64_t windows = corpus.windows(10, Split::train);
  ASSERT_EQ(windows, 94);
  std::vector<std::int64_t> sorted;
  std::set<std::vector<std::int64_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < windows; ++i) order.push_back(starts(corpus.batch(epoch * windows + i, 1, 10))[0]);
    orders.insert(order);
    std::ranges::sort(order);
    for (std::int64_t i = 0; i < windows; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i * 10);
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST_F(Data, PermutesAnyCount) {
  for (std::int64_t count = 1; count < 300; ++count) {
    std::set<std::int64_t> images;
    for (std::int64_t i = 0; i < count; ++i) images.insert(models::permute(i, count, 42));
    ASSERT_EQ(images.size(), static_cast<std::size_t>(count));
    ASSERT_GE(*images.begin(), 0);
    ASSERT_LT(*images.rbegin(), count);
  }
}

TEST_F(Data, TrainingNeverSeesTheHeldOutTokens) {
  const Corpus corpus = places(1007);
  EXPECT_EQ(corpus.tokens(Split::train) + corpus.tokens(Split::held_out), 1007);
  EXPECT_EQ(corpus.tokens(Split::held_out), 50);
  const std::int64_t border = corpus.tokens(Split::train);
  for (std::int64_t i = 0; i < 2 * corpus.windows(7, Split::train); ++i)
    EXPECT_LT(corpus.batch(i, 1, 7).targets.max().item<std::int64_t>(), border);
}

TEST_F(Data, EvaluationReadsTheHeldOutWindowsInOrder) {
  const Corpus corpus = places(1000);
  EXPECT_EQ(corpus.windows(7, Split::held_out), 7);
  ASSERT_EQ(corpus.evaluation_batches(3, 7), 2);
  EXPECT_EQ(starts(corpus.batch(0, 3, 7, Split::held_out)), (std::vector<std::int64_t>{950, 957, 964}));
  EXPECT_EQ(starts(corpus.batch(1, 3, 7, Split::held_out)), (std::vector<std::int64_t>{971, 978, 985}));
}

}  // namespace data_test

// A checkpoint's weights as a folder of Hugging Face's.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/half.h"
#include "checkpoints.h"
#include "persist/safetensors_folder.h"
#include "persist/weight_files.h"
#include "zero/checkpoint.h"
#include "zero/error.h"
#include "zero/safetensors.h"

namespace zero::test::export_safetensors_test {

namespace fs = std::filesystem;

// Main weights, a parameter without, a buffer, and what is no weight; in fp32 all bits are finite.
MadeState model_state() {
  MadeState made;
  made.scalars.steps = 3;
  made.add({{"w", StateKind::main_weight}, Dtype::f32, {300, 7}}, {1, 0})
      .add({{"w", StateKind::moment, "0"}, Dtype::f32, {300, 7}})
      .add({{"norm", StateKind::parameter}, Dtype::bf16, {5}})
      .add({{"count", StateKind::buffer}, Dtype::i64, {}});
  float value = -3;
  for (std::size_t at = 0; at < made.tensors[0].values.size(); at += 4, value += 0.0103F)
    std::memcpy(made.tensors[0].values.data() + at, &value, 4);
  return made;
}

class ExportedWeights : public testing::Test {
 protected:
  ExportedWeights() { ::mkdtemp(folder_.data()); }
  ~ExportedWeights() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  // Saved by three ranks; the checkpoint's folder.
  std::string saved(const std::string& user = {}) const {
    save(posix_env(), path("run"), made_, {3, 1}, {.user = user});
    return path("run/step-000003");
  }
  static std::string text_of(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }
  static std::string values(const SafetensorsFolder& folder, const std::string& name) {
    const auto& [file, entry] = folder.tensors().at(name);
    std::string bytes(static_cast<std::size_t>(entry->bytes()), '\0');
    file->read(*entry, 0, bytes);
    return bytes;
  }
  template <class Work>
  static std::string fault(const Work& work) {
    try {
      work();
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }

  std::string folder_ = testing::TempDir() + "zero-export-XXXXXX";
  MadeState made_ = model_state();
};

TEST_F(ExportedWeights, AreTheMainWeightsToTheBit) {
  std::vector<std::int64_t> done;
  std::int64_t all = 0;
  export_safetensors(saved(), path("out"), {.texts = {{"config.json", "{}"}}, .progress = [&](auto now, auto of) {
                                              done.push_back(now);
                                              all = of;
                                            }});
  const SafetensorsFolder folder(path("out"));
  ASSERT_EQ(folder.tensors().size(), 3u);
  EXPECT_EQ(folder.tensors().at("w").entry->type, TensorType::f32);
  EXPECT_EQ(folder.tensors().at("w").entry->shape, (std::vector<std::int64_t>{300, 7}));
  EXPECT_EQ(values(folder, "w"), made_.tensors[0].values);
  EXPECT_EQ(folder.tensors().at("norm").entry->type, TensorType::bf16);
  EXPECT_EQ(values(folder, "norm"), made_.tensors[2].values);
  EXPECT_EQ(values(folder, "count"), made_.tensors[3].values);
  EXPECT_EQ(text_of(path("out/config.json")), "{}");
  EXPECT_EQ(all, 300 * 7 * 4 + 5 * 2 + 8);
  EXPECT_EQ(done.back(), all);
  EXPECT_FALSE(fs::exists(path("out.partial")));
}

TEST_F(ExportedWeights, AreRoundedWhereANarrowerTypeIsAskedFor) {
  export_safetensors(saved(), path("out"), {.dtype = Dtype::bf16});
  const SafetensorsFolder folder(path("out"));
  EXPECT_EQ(folder.tensors().at("w").entry->type, TensorType::bf16);
  const std::string wide = made_.tensors[0].values, narrow = values(folder, "w");
  ASSERT_EQ(narrow.size() * 2, wide.size());
  for (std::size_t i = 0; i < narrow.size() / 2; ++i) {
    float value = 0;
    Bf16 rounded{}, found{};
    std::memcpy(&value, wide.data() + i * 4, 4);
    std::memcpy(&found, narrow.data() + i * 2, 2);
    zero::narrow(value, rounded);
    ASSERT_EQ(found.bits, rounded.bits) << value;
  }
  EXPECT_EQ(values(folder, "norm"), made_.tensors[2].values);
  EXPECT_EQ(folder.tensors().at("count").entry->type, TensorType::i64);
}

TEST_F(ExportedWeights, AreWidenedExactly) {
  made_.tensors[2].values = {'\x80', '\x3f', '\x00', '\xc0', '\x00', '\x00', '\x01', '\x00', '\x7f', '\x7f'};
  export_safetensors(saved(), path("out"), {.dtype = Dtype::f32});
  const std::string wide = values(SafetensorsFolder(path("out")), "norm");
  std::vector<float> found(5);
  ASSERT_EQ(wide.size(), 20u);
  std::memcpy(found.data(), wide.data(), 20);
  EXPECT_EQ(found, (std::vector<float>{1, -2, 0, 0x1p-133F, 0x1.fep127F}));
}

TEST_F(ExportedWeights, AreShardsWhereFilesAreLimited) {
  export_safetensors(saved(), path("out/deeper/"), {.file_bytes = 100});
  EXPECT_TRUE(fs::exists(path("out/deeper/model-00001-of-00002.safetensors")));
  EXPECT_EQ(values(SafetensorsFolder(path("out/deeper")), "w"), made_.tensors[0].values);
}

TEST_F(ExportedWeights, ReplaceNothing) {
  const std::string checkpoint = saved();
  fs::create_directory(path("empty"));
  export_safetensors(checkpoint, path("empty"));
  EXPECT_NE(fault([&] { export_safetensors(checkpoint, path("empty")); }).find("is there already"), std::string::npos);
  EXPECT_NE(fault([&] { export_safetensors(checkpoint, path("run")); }).find("is there already"), std::string::npos);
}

TEST_F(ExportedWeights, WhatACutOffExportLeftIsRemoved) {
  fs::create_directory(path("out.partial"));
  std::ofstream(path("out.partial/model.safetensors")) << "half";
  export_safetensors(saved(), path("out"));
  EXPECT_EQ(values(SafetensorsFolder(path("out")), "w"), made_.tensors[0].values);
}

TEST_F(ExportedWeights, ADamagedCheckpointLeavesNothing) {
  const std::string checkpoint = saved();
  const std::string file = checkpoint + "/rank-00001.safetensors";
  std::string bytes = text_of(file);
  bytes.back() ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_NE(fault([&] { export_safetensors(checkpoint, path("out")); }).find("is damaged"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("out")));
  EXPECT_FALSE(fs::exists(path("out.partial")));
  EXPECT_THROW(export_safetensors(path("run"), path("out")), CheckpointError);
  EXPECT_THROW(export_safetensors(checkpoint, path("out"), {.dtype = Dtype::u8}), ConfigError);
}

// Through what opens both a checkpoint and what was exported from it.
TEST_F(ExportedWeights, AreReadInStretches) {
  const std::string checkpoint = saved();
  export_safetensors(checkpoint, path("out"), {.file_bytes = 100});
  for (const std::string& place : {checkpoint, path("out"), path("out/model.safetensors.index.json")}) {
    const auto weights = open_weights(place);
    ASSERT_EQ(weights->tensors().size(), 3u) << place;
    for (std::size_t i = 0; i < 3; ++i) {
      if (weights->tensors()[i].name != "w") continue;
      std::string part(40, '\0');
      weights->read(i, 17, 27, part.data());
      EXPECT_EQ(part, made_.tensors[0].values.substr(17 * 4, 40));
    }
  }
}

TEST_F(ExportedWeights, ACheckpointIsFoundInItsFolder) {
  const std::string checkpoint = saved(R"({"model": {}})");
  for (const std::string& place : {checkpoint, path("run")}) {
    const Restored found = find_checkpoint(place);
    EXPECT_EQ(found.folder, checkpoint);
    EXPECT_EQ(found.step, 3);
    EXPECT_EQ(found.user, R"({"model": {}})");
  }
  fs::resize_file(checkpoint + "/rank-00002.safetensors", 100);
  const std::string damaged = fault([&] { find_checkpoint(path("run")); });
  EXPECT_NE(damaged.find("rank-00002.safetensors"), std::string::npos) << damaged;
  EXPECT_THROW(find_checkpoint(path("nothing")), CheckpointError);
}

}  // namespace zero::test::export_safetensors_test

// Models as Hugging Face lays them out: one file, or shards with an index.
#include "persist/safetensors_writer.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "fault_env.h"
#include "persist/safetensors.h"
#include "persist/safetensors_folder.h"
#include "zero/error.h"

namespace zero::test::safetensors_writer_test {

using Shards = std::vector<std::vector<std::size_t>>;

// As many bytes as told, named "a", "b", ...
std::vector<WeightTensor> byte_tensors(const std::vector<std::int64_t>& sizes) {
  std::vector<WeightTensor> tensors;
  for (const std::int64_t size : sizes)
    tensors.push_back({std::string(1, static_cast<char>('a' + tensors.size())), TensorType::u8, {size}});
  return tensors;
}

// Every byte of a tensor is its index, in two parts.
void give_index(std::size_t tensor, std::int64_t bytes, const WriteBytes& write) {
  const std::string values(static_cast<std::size_t>(bytes), static_cast<char>(tensor));
  write(values.data(), bytes / 2);
  write(values.data() + bytes / 2, bytes - bytes / 2);
}

void write_model(FaultEnv& env, const std::vector<WeightTensor>& tensors, std::int64_t most) {
  env.create_folder("/m");
  write_safetensors_model(env, "/m", tensors, most, [&](std::size_t tensor, const WriteBytes& write) {
    give_index(tensor, *bytes_of(tensors[tensor].type, tensors[tensor].shape), write);
  });
}

// What tensors of a written file hold, by name.
std::map<std::string, std::string> read_file(FaultEnv& env, const std::string& path) {
  const std::string bytes = env.bytes_of(path);
  const SafetensorsHeader header = read_safetensors_header(bytes, std::ssize(bytes), path);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  std::map<std::string, std::string> values;
  for (const TensorEntry& each : header.tensors) {
    EXPECT_EQ(each.begin % (bits_of(each.type) / 8), 0) << each.name;
    values[each.name] =
        bytes.substr(static_cast<std::size_t>(header.data_begin + each.begin), static_cast<std::size_t>(each.bytes()));
  }
  return values;
}

std::string filled(std::size_t count, int value) {
  return std::string(count, static_cast<char>(value));
}

TEST(SafetensorsWriter, AFileEndsBeforeItWouldBeTooLarge) {
  EXPECT_EQ(shards_of(byte_tensors({4, 6, 1, 9, 1}), 10), (Shards{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(shards_of(byte_tensors({4, 6, 1, 9, 1}), 21), (Shards{{0, 1, 2, 3, 4}}));
  EXPECT_EQ(shards_of(byte_tensors({}), 1), (Shards{{}}));
}

TEST(SafetensorsWriter, ATensorThatIsTooLargeHasAFileOfItsOwn) {
  EXPECT_EQ(shards_of(byte_tensors({30, 1, 30, 1, 1}), 10), (Shards{{0}, {1}, {2}, {3, 4}}));
}

TEST(SafetensorsWriter, WhatFitsIsOneFileWithoutAnIndex) {
  FaultEnv env;
  write_model(env, {{"narrow", TensorType::u8, {3}}, {"none", TensorType::f32, {0, 2}}, {"wide", TensorType::f64, {}}},
              1000);
  EXPECT_EQ(env.files("/m"), (std::vector<std::string>{"/m/model.safetensors"}));
  EXPECT_EQ(read_file(env, "/m/model.safetensors"),
            (std::map<std::string, std::string>{{"narrow", filled(3, 0)}, {"none", ""}, {"wide", filled(8, 2)}}));
}

TEST(SafetensorsWriter, ShardsHaveHuggingFacesNamesAndAnIndex) {
  FaultEnv env;
  write_model(env, byte_tensors({4, 6, 1, 9, 1}), 10);
  const std::string one = "model-00001-of-00003.safetensors", two = "model-00002-of-00003.safetensors",
                    three = "model-00003-of-00003.safetensors";
  EXPECT_EQ(env.files("/m"),
            (std::vector<std::string>{"/m/" + one, "/m/" + two, "/m/" + three, "/m/model.safetensors.index.json"}));
  EXPECT_EQ(read_safetensors_index(env.bytes_of("/m/model.safetensors.index.json"), "index"),
            (SafetensorsFiles{{"a", one}, {"b", one}, {"c", two}, {"d", two}, {"e", three}}));
  EXPECT_NE(env.bytes_of("/m/model.safetensors.index.json").find("\"total_size\": 21"), std::string::npos);
  EXPECT_EQ(read_file(env, "/m/" + two),
            (std::map<std::string, std::string>{{"c", filled(1, 2)}, {"d", filled(9, 3)}}));
}

TEST(SafetensorsWriter, WeightsThatAreThereStay) {
  FaultEnv env;
  write_model(env, byte_tensors({4}), 10);
  EXPECT_THROW(write_model(env, byte_tensors({4, 9}), 10), CheckpointError);
  EXPECT_EQ(env.files("/m"), (std::vector<std::string>{"/m/model.safetensors"}));
  FaultEnv sharded;
  write_model(sharded, byte_tensors({4, 9}), 10);
  EXPECT_THROW(write_model(sharded, byte_tensors({4}), 10), CheckpointError);
}

TEST(SafetensorsWriter, WhatCannotBeWrittenIsRefused) {
  FaultEnv env;
  EXPECT_THROW(write_model(env, byte_tensors({4}), 0), ConfigError);
  for (const std::int64_t most : {100, 4})  // in one file, and in two
    EXPECT_THROW(write_model(env, {{"a", TensorType::u8, {4}}, {"a", TensorType::u8, {4}}}, most), CheckpointError);
  EXPECT_THROW(write_model(env, {{"\xff", TensorType::u8, {4}}}, 100), CheckpointError);
  EXPECT_THROW(write_safetensors_model(env, "/m", byte_tensors({4}), 10,
                                       [](std::size_t, const WriteBytes& write) { write("abc", 3); }),
               StateError);
  EXPECT_THROW(write_safetensors_model(env, "/m", byte_tensors({2}), 10,
                                       [](std::size_t, const WriteBytes& write) { write("abc", 3); }),
               StateError);
  EXPECT_EQ(env.files("/m"), std::vector<std::string>());
}

// Whatever fails, what a reader would open is there whole or not at all, and the next attempt succeeds.
TEST(SafetensorsWriter, AFailureLeavesNothingThatCouldBeOpened) {
  for (const bool crash : {false, true})
    for (std::int64_t after = 0;; ++after) {
      FaultEnv env;
      env.create_folder("/m");
      env.sync_folder("/");
      const auto attempt = [&] { write_model(env, byte_tensors({4, 6, 1, 9, 1}), 10); };
      (crash ? env.crash_after(after) : env.fail_after(after));
      try {
        attempt();
      } catch (const CheckpointError&) {
        EXPECT_TRUE(env.struck());
      }
      const bool struck = env.struck();
      if (crash) env.restart(Survives::some, static_cast<unsigned>(after));
      env.disarm();
      if (!struck) {
        EXPECT_GT(after, 10);
        break;
      }
      for (const std::string& file : env.files("/m"))
        EXPECT_FALSE(!crash && file.ends_with(".partial")) << file << " " << after;
      if (env.has("/m/model.safetensors.index.json")) {
        for (const auto& [tensor, file] :
             read_safetensors_index(env.bytes_of("/m/model.safetensors.index.json"), "index"))
          EXPECT_TRUE(read_file(env, "/m/" + file).contains(tensor)) << after;
      } else {
        attempt();
      }
    }
}

}  // namespace zero::test::safetensors_writer_test

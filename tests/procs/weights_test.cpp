// Weights that come into the program and go out of it: train --model FOLDER, eval, checkpoint export.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoints.h"
#include "documented.h"
#include "persist/safetensors_folder.h"
#include "procs/zero_program.h"

namespace weights_test {

using procs::contains;
using procs::Folder;
using procs::joined;
using procs::Result;
using procs::run;
using procs::Words;
using procs::zero;

constexpr const char* kConfig = R"({"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64})";

// Norms are one, and so the loss is that of a model.
void add(::zero::test::MadeState& made, const std::string& name, const std::vector<std::int64_t>& shape) {
  made.add({{name, ::zero::StateKind::parameter}, ::zero::Dtype::f32, shape});
  std::string& values = made.tensors.back().values;
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const float value = shape.size() == 1 ? 1 : 0.5F * std::sin(static_cast<float>(i * (made.tensors.size() + 3)));
    std::memcpy(values.data() + i, &value, sizeof value);
  }
}

::zero::test::MadeState model_state(std::int64_t steps) {
  ::zero::test::MadeState made;
  made.scalars.steps = steps;
  add(made, "model.embed_tokens.weight", {256, 16});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add(made, layer + norm + ".weight", {16});
    for (const char* square : {"q_proj", "o_proj"}) add(made, layer + "self_attn." + square + ".weight", {16, 16});
    for (const char* narrow : {"k_proj", "v_proj"}) add(made, layer + "self_attn." + narrow + ".weight", {8, 16});
    for (const char* wide : {"gate_proj", "up_proj"}) add(made, layer + "mlp." + wide + ".weight", {24, 16});
    add(made, layer + "mlp.down_proj.weight", {16, 24});
  }
  add(made, "model.norm.weight", {16});
  add(made, "lm_head.weight", {256, 16});
  return made;
}

class Weights : public testing::Test {
 protected:
  // A checkpoint of two ranks in the folder `run`.
  void save(std::int64_t steps, const std::string& user) const {
    ::zero::test::save(::zero::posix_env(), folder_.path("run"), model_state(steps), {2, 1}, {.user = user});
  }
  void save(std::int64_t steps = 3) const { save(steps, R"({"other": [1], "model": )" + std::string(kConfig) + "}"); }

  Result in_program(const Words& words) const { return run(zero(words), {{"XDG_CACHE_HOME", folder_.path("cache")}}); }
  Result exported(const std::string& checkpoint, const Words& more = {}) const {
    return in_program(joined({"checkpoint", "export", folder_.path(checkpoint), "--to", folder_.path("out")}, more));
  }
  Result evaluated(const std::string& model, const Words& more = {}) const {
    return in_program(joined({"eval", "--model", folder_.path(model), "--data", folder_.path("text"), "--seq", "24",
                              "--json", folder_.path("json")},
                             more));
  }
  double loss_of(const std::string& model, const Words& more = {}) const {
    const Result result = evaluated(model, more);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.code == 0 ? folder_.document("json").at("loss").get<double>() : 0;
  }
  static void expect_refused(const Result& result, const Words& says) {
    EXPECT_NE(result.code, 0);
    for (const std::string& each : says) EXPECT_TRUE(contains(result.err, each)) << each << "\n  in " << result.err;
  }

  Folder folder_;
};

TEST_F(Weights, ACheckpointAndWhatIsExportedFromItHaveTheSameLoss) {
  save();
  const Result result = exported("run", {"--max-shard-size", "10kB", "--json", folder_.path("json")});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "step 3")) << result.out;
  documented::Schema documented{ZERO_SOURCE_DIR "/docs/json.md", "zero.export/1"};
  documented.check(documented::Json::parse(procs::read_all(folder_.path("json"))));
  EXPECT_EQ(documented.missing(), "");
  EXPECT_TRUE(folder_.has("out/model.safetensors.index.json"));
  EXPECT_EQ(folder_.document("out/config.json").at("torch_dtype"), "float32");
  EXPECT_EQ(folder_.document("out/config.json").at("num_key_value_heads"), 2);
  const double loss = loss_of("run");
  EXPECT_GT(loss, 1);
  EXPECT_EQ(loss_of("run/step-000003"), loss);
  EXPECT_EQ(loss_of("out"), loss);
}

TEST_F(Weights, AnExportInBf16SaysSo) {
  save();
  const Result result = exported("run/step-000003", {"--dtype", "bf16"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(folder_.document("out/config.json").at("torch_dtype"), "bfloat16");
  EXPECT_NEAR(loss_of("out"), loss_of("run"), 0.05);
}

TEST_F(Weights, AnExportIsRefusedWhereTheModelIsNotKnown) {
  save(3, "");
  expect_refused(exported("run"), {"step-000003", "do not say of which model it is"});
  save(4, R"({"model": 3})");
  expect_refused(exported("run"), {"step-000004", "\"model\""});
  save(5, R"({"model": {"hidden_size": 16}})");
  expect_refused(exported("run"), {"step-000005", "\"intermediate_size\" is missing"});
  EXPECT_FALSE(folder_.has("out"));
  EXPECT_FALSE(folder_.has("out.partial"));
  save(6);
  std::filesystem::create_directories(folder_.path("out/something"));
  expect_refused(exported("run"), {"is there already"});
  expect_refused(exported("none"), {"no checkpoint"});
}

TEST_F(Weights, TheNewestWholeCheckpointIsTaken) {
  save(3);
  save(4);
  std::filesystem::resize_file(folder_.path("run/step-000004/rank-00001.safetensors"), 99);
  ASSERT_EQ(evaluated("run").code, 0);
  EXPECT_EQ(folder_.document("json").at("weights"), folder_.path("run/step-000003"));
  expect_refused(evaluated("run/step-000004"), {"rank-00001.safetensors", "is damaged"});
}

TEST_F(Weights, EveryTokenCountsTheSameHoweverTheyAreBatched) {
  save();
  const double loss = loss_of("run");
  documented::Schema documented{ZERO_SOURCE_DIR "/docs/json.md", "zero.eval/1"};
  documented.check(documented::Json::parse(procs::read_all(folder_.path("json"))));
  EXPECT_EQ(documented.missing(), "");
  const auto tokens = static_cast<std::int64_t>(std::filesystem::file_size(folder_.path("text")));
  EXPECT_EQ(folder_.document("json").at("tokens"), tokens - 1);
  EXPECT_NE((tokens - 1) % 24, 0);
  EXPECT_NEAR(loss_of("run", {"--batch", "17"}), loss, 1e-6);
  const Result alone = evaluated("run", {"--json", "-"});
  EXPECT_NE(alone.code, 0);  // given twice
}

TEST_F(Weights, EvaluationIsRefusedWhereItCannotWork) {
  save();
  std::ofstream(folder_.path("one")) << "a";
  expect_refused(evaluated("none"), {"--model", "is no folder"});
  expect_refused(evaluated("cache"), {"--model"});
  std::filesystem::create_directory(folder_.path("empty"));
  expect_refused(evaluated("empty"), {"has no weights"});
  expect_refused(in_program({"eval", "--model", folder_.path("run"), "--data", folder_.path("one"), "--seq", "24"}),
                 {"one token"});
  expect_refused(in_program({"eval", "--model", folder_.path("run"), "--data", folder_.path("text"), "--seq", "65"}),
                 {"--seq", "64 positions"});
}

TEST_F(Weights, TrainingStartsFromTheWeightsOfAFolder) {
  save();
  ASSERT_EQ(exported("run").code, 0);
  const Words options{
      "--data", folder_.path("text"), "--seq",   "24", "--batch", "2", "--steps", "1", "--lr", "0", "--profile", "none",
      "--json", folder_.path("json"), "--ranks", "2"};
  const auto first_loss = [&](const std::string& command, const std::string& model, const std::string& says) {
    const Result result = in_program(joined({command, "--model", folder_.path(model)}, options));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(contains(result.out + result.err, says)) << result.out << result.err;
    return folder_.document("json").at("runs").at(0).at("losses").at(0).get<double>();
  };
  const double trained = first_loss("train", "out", "starts from the weights in");
  const double random = first_loss("train", "out/config.json", "starts from random weights");
  EXPECT_GT(std::abs(trained - random), 0.01);
  EXPECT_EQ(first_loss("compare", "out", "every run starts from the weights in"), trained);
  std::filesystem::remove(folder_.path("out/model.safetensors"));
  EXPECT_EQ(first_loss("train", "out", "starts from random weights"), random);
}

TEST_F(Weights, WeightsOfAnotherModelAreRefusedWithAllDifferences) {
  save();
  ASSERT_EQ(exported("run").code, 0);
  nlohmann::json config = folder_.document("out/config.json");
  config["intermediate_size"] = 32;
  config["num_hidden_layers"] = 1;
  std::ofstream(folder_.path("out/config.json")) << config;
  const Words words{"--model", folder_.path("out"), "--data", folder_.path("text"), "--seq", "24"};
  for (const Words& command : {Words{"eval"}, Words{"train", "--steps", "1"}, Words{"train", "--ranks", "2"}})
    expect_refused(in_program(joined(command, words)),
                   {"'model.layers.0.mlp.gate_proj.weight' is F32 [24, 16], not Float [32, 16]",
                    "'model.layers.1.mlp.gate_proj.weight' is not expected"});
}

}  // namespace weights_test

// A module's weights in and out of safetensors files.
#include <cstdlib>
#include <filesystem>

#include "harness.h"
#include "lm.h"
#include "persist/safetensors_folder.h"

namespace zero::test::safetensors_module_test {

namespace fs = std::filesystem;

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& table) : weight(register_parameter("weight", table)) {}
  at::Tensor weight;
};
TORCH_MODULE(Head);

// A head that is the embedding, a matrix that lies in columns, buffers of two types, a scalar.
struct Tied : torch::nn::Module {
  explicit Tied(std::int64_t seed)
      : embed(register_module("embed", torch::nn::Embedding(7, 3))),
        norm(register_module("norm", torch::nn::BatchNorm1d(3))),
        head(register_module("head", Head(embed->weight))),
        turned(register_parameter("turned", torch::zeros({5, 4}).t())),
        scale(register_parameter("scale", torch::zeros({}))) {
    const torch::NoGradGuard no_grad;
    std::int64_t index = seed;
    for (at::Tensor& each : parameters()) each.copy_(numbers(index++, each.sizes()));
    norm->running_mean.copy_(numbers(index, {3}));
    norm->num_batches_tracked.fill_(seed);
  }
  torch::nn::Embedding embed;
  torch::nn::BatchNorm1d norm;
  Head head;
  at::Tensor turned, scale;
};

using Values = std::map<std::string, at::Tensor>;

Values values_of(const torch::nn::Module& module) {
  Values values;
  for (const auto& item : module.named_parameters()) values[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) values[item.key()] = item.value().clone();
  return values;
}

void expect_equal(const Values& a, const Values& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(tensor.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

class SafetensorsModule : public testing::Test {
 protected:
  SafetensorsModule() { ::mkdtemp(folder_.data()); }
  ~SafetensorsModule() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_ = testing::TempDir() + "zero-weights-XXXXXX";
};

TEST_F(SafetensorsModule, ComesBackToTheBit) {
  const Tied saved(1);
  for (const std::int64_t most : {1 << 20, 40}) {
    const std::string folder = path(std::to_string(most));
    save_safetensors(saved, folder, {.file_bytes = most});
    EXPECT_EQ(fs::exists(folder + "/model.safetensors.index.json"), most == 40);
    Tied loaded(2);
    const void* const place = loaded.turned.const_data_ptr();
    load_safetensors(loaded, folder);
    expect_equal(values_of(loaded), values_of(saved));
    EXPECT_EQ(loaded.turned.const_data_ptr(), place);
    EXPECT_TRUE(loaded.turned.requires_grad() && loaded.turned.is_leaf());
    EXPECT_TRUE(loaded.head->weight.is_same(loaded.embed->weight));
  }
}

TEST_F(SafetensorsModule, WhatIsSharedIsWrittenOnceAndFoundUnderAnyOfItsNames) {
  const Tied saved(1);
  save_safetensors(saved, path("first"));
  const SafetensorsFolder first(path("first"));
  EXPECT_TRUE(first.tensors().contains("embed.weight"));
  EXPECT_FALSE(first.tensors().contains("head.weight"));
  save_safetensors(saved, path("second"),
                   {.names = [](const std::string& name) { return name == "embed.weight" ? std::string() : name; }});
  EXPECT_FALSE(SafetensorsFolder(path("second")).tensors().contains("embed.weight"));
  Tied loaded(2);
  load_safetensors(loaded, path("second"));
  expect_equal(values_of(loaded), values_of(saved));
}

TEST_F(SafetensorsModule, NamesThatDifferAreMapped) {
  const Tied saved(1);
  const std::map<std::string, std::string> names{{"turned", "model.turned"}, {"norm.weight", "ln.gamma"}};
  save_safetensors(saved, path("mapped"), {.names = names});
  EXPECT_TRUE(SafetensorsFolder(path("mapped")).tensors().contains("ln.gamma"));
  Tied loaded(2);
  EXPECT_THROW(load_safetensors(loaded, path("mapped")), ConfigError);
  load_safetensors(loaded, path("mapped"), names);
  expect_equal(values_of(loaded), values_of(saved));
}

TEST_F(SafetensorsModule, WhatHasNoNameThereStaysAsItIs) {
  save_safetensors(Tied(1), path("whole"));
  Tied loaded(2);
  const Values before = values_of(loaded);
  const auto nothing = [](const std::string& name) { return name == "scale" ? name : std::string(); };
  EXPECT_THROW(load_safetensors(loaded, path("whole"), nothing), ConfigError);
  load_safetensors(loaded, path("whole"), nothing, [](const std::string&) { return true; });
  Values expected = before;
  expected["scale"] = values_of(Tied(1)).at("scale");
  expect_equal(values_of(loaded), expected);
}

TEST_F(SafetensorsModule, FloatingPointTypesAreConverted) {
  const Tied saved(1);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f64}) {
    const std::string folder = path(std::string(name(dtype)));
    save_safetensors(saved, folder, {.dtype = dtype});
    const SafetensorsFolder written(folder);
    EXPECT_EQ(written.tensors().at("turned").entry->bytes(), 20 * size_of(dtype));
    EXPECT_EQ(written.tensors().at("norm.num_batches_tracked").entry->type, TensorType::i64);
    Tied loaded(2);
    load_safetensors(loaded, folder);
    const at::ScalarType type = dtype == Dtype::bf16 ? at::kBFloat16 : dtype == Dtype::f16 ? at::kHalf : at::kDouble;
    for (const auto& [name, tensor] : values_of(saved))
      EXPECT_TRUE(at::equal(values_of(loaded).at(name),
                            tensor.is_floating_point() ? tensor.to(type).to(tensor.scalar_type()) : tensor))
          << name;
    loaded.turned.set_data(loaded.turned.to(at::kHalf));
    load_safetensors(loaded, folder);
    EXPECT_TRUE(at::equal(loaded.turned, saved.turned.to(type).to(at::kHalf)));
  }
  EXPECT_THROW(save_safetensors(saved, path("int"), {.dtype = Dtype::i32}), ConfigError);
}

// More than what is converted at a time.
TEST_F(SafetensorsModule, LargeTensorsAreConvertedPieceByPiece) {
  const torch::nn::Linear saved(torch::nn::LinearOptions(2051, 2049).bias(false));
  save_safetensors(*saved, path("large"), {.dtype = Dtype::bf16});
  torch::nn::Linear loaded(torch::nn::LinearOptions(2051, 2049).bias(false));
  load_safetensors(*loaded, path("large"));
  EXPECT_TRUE(at::equal(loaded->weight, saved->weight.to(at::kBFloat16).to(at::kFloat)));
}

TEST_F(SafetensorsModule, AllDifferencesAreToldAndNothingIsChanged) {
  struct Other : torch::nn::Module {
    Other() {
      register_parameter("turned", torch::zeros({5, 4}));
      register_parameter("more", torch::zeros({2}));
      register_buffer("scale", torch::zeros({}, at::kInt));
      register_module("norm", torch::nn::BatchNorm1d(3));
    }
  } other;
  save_safetensors(Tied(1), path("tied"));
  const Values before = values_of(other);
  const std::string error = thrown_by([&] { load_safetensors(other, path("tied")); });
  EXPECT_TRUE(says(error, {path("tied"), "'turned' is F32 [4, 5], not Float [5, 4]", "'more' is missing, Float [2]",
                           "'scale' is F32 [], not Int []", "'embed.weight' is not expected"}));
  expect_equal(values_of(other), before);
}

TEST_F(SafetensorsModule, TwoValuesForOneTensorAreADifference) {
  struct Untied : torch::nn::Module {
    explicit Untied(const at::Tensor& second) {
      register_module("embed", Head(torch::ones({7, 3})));
      register_module("head", Head(second));
    }
  };
  struct One : torch::nn::Module {
    One() {
      const Head shared(torch::zeros({7, 3}));
      register_module("embed", shared);
      register_module("head", shared);
    }
  } one;
  save_safetensors(Untied(torch::ones({7, 3})), path("equal"));
  save_safetensors(Untied(torch::ones({7, 3}) * 2), path("apart"));
  EXPECT_TRUE(
      says(thrown_by([&] { load_safetensors(one, path("apart")); }), {"'embed.weight'", "'head.weight' differ"}));
  load_safetensors(one, path("equal"));
  EXPECT_TRUE(at::equal(one.parameters().front(), torch::ones({7, 3})));
}

TEST_F(SafetensorsModule, WhatCannotBeWrittenLeavesNothing) {
  struct Complex : torch::nn::Module {
    Complex() { register_buffer("phase", torch::zeros({2}, at::kComplexDouble)); }
  };
  EXPECT_TRUE(says(thrown_by([&] { save_safetensors(Complex(), path("complex")); }), {"'phase'", "ComplexDouble"}));
  const auto same = [](const std::string&) { return std::string("same"); };
  EXPECT_THROW(save_safetensors(Tied(1), path("same"), {.names = same}), CheckpointError);
  EXPECT_TRUE(!fs::exists(path("same")) || fs::is_empty(path("same")));
  save_safetensors(Tied(1), path("twice"));
  EXPECT_THROW(save_safetensors(Tied(1), path("twice")), CheckpointError);
}

// Under every plan: refused outside of a scope, read and written inside.
TEST_F(SafetensorsModule, UnderAnEngineInsideAGatherScope) {
  Lm other;
  initialise(other, 3);
  save_safetensors(other, path("other"));
  under_every_plan({.ranks = 2}, [&](const Job& job) {
    const std::string folder = path("from " + describe(job));
    on_ranks(job, Course<Lm>{}, [&](Lm& model, Engine& engine, int rank) {
      const std::string refused = thrown_by([&] { load_safetensors(model, path("other")); });
      EXPECT_TRUE(says(refused, {"is an engine's", "zero::gather"}));
      EXPECT_TRUE(says(thrown_by([&] { save_safetensors(model, folder); }), {"is an engine's"}));
      {
        const Gather whole = gather(model.parameters(), 0);
        if (rank == 0) load_safetensors(model, path("other"));
      }
      train_step(model, engine);
      {
        const Gather whole = gather(model.parameters());
        if (rank == 0) save_safetensors(model, folder);
      }
      Lm loaded;
      if (rank == 0) load_safetensors(loaded, folder);
      for (const auto& item : model.named_parameters()) {
        const at::Tensor value = engine.main_parameter(item.value());
        if (rank != 0) continue;
        EXPECT_TRUE(at::equal(loaded.named_parameters()[item.key()], value)) << item.key();
      }
    });
  });
}

// Its main weights, whatever cut them.
TEST_F(SafetensorsModule, ACheckpointIsLoadedWithoutAnEngine) {
  const Job job{.plan = Plan::zero3().bf16(), .ranks = 3};
  Values expected;
  on_ranks(job, Course<Lm>{}, [&](Lm& model, Engine& engine, int rank) {
    train_step(model, engine);
    engine.save(path("run"));
    for (const auto& item : model.named_parameters()) {
      const at::Tensor value = engine.main_parameter(item.value());
      if (rank == 0) expected[item.key()] = value;
    }
  });
  Lm loaded;
  load_safetensors(loaded, path("run/step-000001"));
  for (const auto& [name, value] : expected) EXPECT_TRUE(at::equal(loaded.named_parameters()[name], value)) << name;
}

}  // namespace zero::test::safetensors_module_test

// Engines whose mesh has a tensor axis: modules as they are, each rank with its part.
#include <torch/torch.h>

#include "folder.h"
#include "gpt.h"
#include "harness.h"
#include "models/llama.h"
#include "saved_states.h"

namespace zero::test::tensor_axis_test {

using at::Tensor;

constexpr double kTolerance = 1e-5;

class TensorGrain : public testing::TestWithParam<Precision> {};

// In four tiles one, two and four ranks of the axis have one curve of losses, under every plan.
TEST_P(TensorGrain, HasTheBitsOfOneRank) {
  const OneThread alone;
  for (const Plan& plan : all_plans()) {
    Job one{.plan = plan.precision(GetParam()), .ranks = 1, .options = {.clip = .5}, .steps = 3};
    one.options.tensor_grain = 4;
    one.options.tensor = kCut;
    const Outcome expected = train(one, gpt_with_dropout());
    for (const int tensor : {2, 4})
      EXPECT_EQ(difference(expected, train(cut_job(one, tensor), gpt_with_dropout())), "")
          << plan.label() << " on " << tensor;
    EXPECT_EQ(expected.losses.size(), 3U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TensorGrain, testing::Values(Precision::fp32, Precision::bf16),
                         [](const auto& row) { return in_title(std::string(name(row.param))); });

class TensorAxisPlans : public testing::TestWithParam<std::tuple<Plan, int, int>> {};

TEST_P(TensorAxisPlans, TrainAsOneRankOfTheAxisDoes) {
  const auto& [plan, data, tensor] = GetParam();
  const Job whole{.plan = plan, .ranks = data, .options = {.clip = .5}, .steps = 4};
  const Course<Gpt> course = gpt_with_dropout();
  EXPECT_EQ(difference(train(whole, course), train(cut_job(whole, tensor), course), kTolerance), "");
}

INSTANTIATE_TEST_SUITE_P(All, TensorAxisPlans,
                         testing::Combine(testing::ValuesIn(all_plans()), testing::Values(1, 2), testing::Values(2, 4)),
                         [](const auto& row) {
                           return in_title(std::get<0>(row.param).label()) + "Data" +
                                  std::to_string(std::get<1>(row.param)) + "Tensor" +
                                  std::to_string(std::get<2>(row.param));
                         });

// Each with something beside the tensor axis.
struct Beside {
  const char* name;
  std::function<void(Job&)> change;
};

class BesideTheTensorAxis : public testing::TestWithParam<Beside> {};

TEST_P(BesideTheTensorAxis, EnginesTrainAsWithoutIt) {
  Job whole{.plan = Plan::zero3(), .ranks = 2, .steps = 4};
  GetParam().change(whole);
  const Course<Gpt> course = gpt_with_dropout();
  const double tolerance = whole.plan.precision() == Precision::fp32 ? kTolerance : .02;
  EXPECT_EQ(difference(train(whole, course), train(cut_job(whole, 2), course), tolerance), "");
}

INSTANTIATE_TEST_SUITE_P(
    All, BesideTheTensorAxis,
    testing::Values(Beside{"Accumulation", [](Job& job) { job.plan = job.plan.accumulate(2); }},
                    Beside{"Bf16", [](Job& job) { job.plan = job.plan.bf16(); }},
                    Beside{"KahanBf16", [](Job& job) { job.plan = job.plan.precision(Precision::bf16_kahan); }},
                    Beside{"Fp16", [](Job& job) { job.plan = job.plan.precision(Precision::fp16); }},
                    Beside{"FullPrecisionNorms",
                           [](Job& job) {
                             job.plan = job.plan.bf16();
                             job.options.full_precision = norms;
                           }},
                    Beside{"Hybrid",
                           [](Job& job) {
                             job.plan = Plan::hybrid();
                             job.ranks = 4;
                             job.shard = 2;
                           }},
                    Beside{"OneUnitResident", [](Job& job) { job.plan = job.plan.resident_budget(1); }},
                    Beside{"Groups",
                           [](Job& job) {
                             job.options.groups = {no_decay_on_norms_biases_embeddings()};
                             job.options.group_norms = true;
                           }},
                    Beside{"SgdWithMomentum", [](Job& job) { job.optimizer = Sgd{.lr = .1, .momentum = .9}; }},
                    Beside{"SequenceParallel", [](Job& job) { job.options.sequence_parallel = true; }},
                    Beside{"SequenceParallelInBf16",
                           [](Job& job) {
                             job.options.sequence_parallel = true;
                             job.plan = Plan::ddp().bf16().accumulate(2);
                           }},
                    Beside{"Reproducible", [](Job& job) { job.plan = job.plan.reproducible(true).accumulate(2); }}),
    [](const auto& row) { return std::string(row.param.name); });

Job small(int tensor = 2) {
  return cut_job({.plan = Plan::zero3(), .ranks = 1, .steps = 1}, tensor);
}

TEST(TensorAxis, GivesTheModuleItsParametersBackWhole) {
  Outcome expected;
  {
    const Outcome run = train<Gpt>({.plan = Plan::zero3(), .ranks = 1, .steps = 2});
    expected = run;
  }
  for (const Plan& plan : {Plan::ddp(), Plan::zero3()}) {
    Job job = small();
    job.plan = plan;
    on_ranks(job, Course<Gpt>{}, [&](Gpt& model, Engine& engine, int) {
      for (int step = 0; step < 2; ++step) train_step(model, engine);
      engine.release();
      for (const auto& item : model.named_parameters()) {
        const at::Tensor& value = item.value();
        ASSERT_TRUE(value.is_contiguous());
        const at::Tensor there = at::from_blob(value.data_ptr(), value.sizes(), value.options().requires_grad(false));
        EXPECT_TRUE(at::allclose(there.cpu(), expected.parameters.at(item.key()), kTolerance, kTolerance))
            << item.key();
      }
    });
  }
}

TEST(TensorAxis, KeepsGlobalSizes) {
  on_ranks(small(4), Course<Gpt>{}, [](Gpt& model, Engine& engine, int) {
    const auto& up = model.blocks->ptr<GptBlockImpl>(0)->up;
    EXPECT_EQ(up->weight.sizes(), at::IntArrayRef({64, 16}));
    EXPECT_EQ(up->weight.numel(), 64 * 16);
    EXPECT_EQ(whole(up->weight).sizes(), up->weight.sizes());
    EXPECT_FALSE(whole(up->weight).requires_grad());
    // The unit of a block has a quarter of what is cut of it.
    const auto [unit, slot] = engine.layout().find("blocks.0.up.weight");
    EXPECT_EQ(engine.layout().unit(unit).slot(slot).numel, 64 * 16 / 4);
  });
}

TEST(TensorAxis, SaysWhereMemoryIsThatIsAskedFor) {
  on_ranks(small(), Course<Gpt>{}, [](Gpt& model, Engine&, int) {
    const auto& up = model.blocks->ptr<GptBlockImpl>(0)->up;
    EXPECT_TRUE(says(thrown_by([&] { static_cast<void>(up->weight.data_ptr()); }),
                     {"parameter 'blocks.0.up.weight' is cut over the 2 ranks of the tensor axis", "zero::whole()"}));
    EXPECT_TRUE(
        says(thrown_by([&] { up->weight.detach().t_(); }), {"aten::t_ would write parameter 'blocks.0.up.weight'"}));
  });
}

TEST(TensorAxis, TellsGradientsAndWeightsWhole) {
  std::map<std::string, at::Tensor> gradients;
  const auto read = [&](const Job& job, std::map<std::string, at::Tensor>& into) {
    on_ranks(job, Course<Gpt>{}, [&](Gpt& model, Engine& engine, int rank) {
      engine.backward(model.loss(engine.micro_batch()));
      for (const auto& item : model.named_parameters()) {
        const at::Tensor gradient = engine.gradient(item.value());
        if (rank == 0) into[item.key()] = gradient;
      }
    });
  };
  std::map<std::string, at::Tensor> cut;
  read({.plan = Plan::zero3(), .ranks = 1}, gradients);
  read(small(), cut);
  for (const auto& [name, gradient] : gradients)
    EXPECT_TRUE(at::allclose(gradient, cut.at(name), kTolerance, 1e-7)) << name;
}

TEST(TensorAxis, TakesWhatScopesWrite) {
  on_ranks(small(), Course<Gpt>{}, [](Gpt& model, Engine& engine, int) {
    const at::Tensor& weight = model.blocks->ptr<GptBlockImpl>(1)->down->weight;
    const at::Tensor wanted = numbers(3, weight.sizes()).to(device_of_rank());
    {
      const auto scope = gather({weight});
      const torch::NoGradGuard no_grad;
      weight.copy_(wanted);
      weight.mul_(2);
    }
    EXPECT_TRUE(at::equal(engine.main_parameter(weight), wanted * 2));
    EXPECT_TRUE(says(thrown_by([&] {
                       const torch::NoGradGuard no_grad;
                       weight.zero_();
                     }),
                     {"would write parameter 'blocks.1.down.weight'"}));
  });
}

// What one engine has saved another goes on from, whatever the sizes of their axes.
TEST(TensorAxis, HasCheckpointsWithoutATraceOfTheCut) {
  for (const Plan& plan : {Plan::zero3(), Plan::ddp().bf16()}) {
    const Job four = cut_job({.plan = plan, .ranks = 1}, 4), flat{.plan = plan, .ranks = 4},
              pairs = cut_job({.plan = plan, .ranks = 2}, 2);
    const Folder folder;
    const auto saved = state_of<Gpt>(four, folder.path() + "/a", 2);
    EXPECT_EQ(saved->faults(), "");
    for (const Job& job : {flat, pairs, four}) {
      const auto loaded = state_of<Gpt>(job, folder.path() + "/a", 0);
      EXPECT_EQ(loaded->faults(), "");
      EXPECT_EQ(difference(*saved, *loaded), "") << describe(job);
    }
    const auto saved_flat = state_of<Gpt>(flat, folder.path() + "/b", 2);
    for (const Job& job : {pairs, four})
      EXPECT_EQ(difference(*saved_flat, *state_of<Gpt>(job, folder.path() + "/b", 0)), "");
  }
}

TEST(TensorAxis, GoesOnFromACheckpointToTheBit) {
  const Job job = cut_job({.plan = Plan::zero3(), .ranks = 2}, 2);
  const auto run = [&](int before, int behind, const std::string& folder) {
    return train_by(job, gpt_with_dropout(), [&](Gpt& model, Engine& engine, Outcome& outcome, int) {
      if (before == 0) engine.load(folder);
      for (int step = 0; step < before; ++step) train_step(model, engine);
      if (before > 0) engine.save(folder, {.background = true});
      for (int step = 0; step < behind; ++step) outcome.record(train_step(model, engine));
      if (before > 0) engine.finish_save();
    });
  };
  const Folder folder;
  const Outcome all = run(2, 2, folder.path()), resumed = run(0, 2, folder.path());
  EXPECT_EQ(difference(all, resumed), "");
}

const TensorRule kLlama = models::llama_cuts();

struct LlamaOfModels : torch::nn::Module {
  LlamaOfModels()
      : llama(register_module("llama", models::Llama(models::LlamaConfig{.hidden_size = 32,
                                                                         .intermediate_size = 64,
                                                                         .num_hidden_layers = 2,
                                                                         .num_attention_heads = 4,
                                                                         .num_key_value_heads = 2,
                                                                         .vocab_size = 48}))) {}
  at::Tensor loss(std::int64_t index) {
    const at::Tensor ids = tokens(index, {2, 9}, 48);
    return llama->loss(ids.slice(1, 0, 8), ids.slice(1, 1));
  }
  models::Llama llama;
};

std::int64_t rows_in_parts(const Engine& engine) {
  std::int64_t count = 0;
  for (const TensorOperator& each : engine.tensor_operators())
    if (each.name == "aten::embedding_dense_backward") count += each.in_parts;
  return count;
}

// Nothing within a block runs whole, and products do so nowhere.
TEST(TensorAxis, CutsAllProductsOfATransformer) {
  Job whole{.plan = Plan::zero3(), .ranks = 1, .steps = 3};
  Job cut = whole;
  cut.options.tensor = kLlama;
  cut.ranks = cut.tensor = 2;
  EXPECT_EQ(difference(train<LlamaOfModels>(whole), train<LlamaOfModels>(cut), kTolerance), "");
  on_ranks(cut, Course<LlamaOfModels>{}, [](LlamaOfModels& model, Engine& engine, int) {
    train_step(model, engine);
    std::string in_whole;
    for (const TensorOperator& each : engine.tensor_operators()) {
      if (each.whole > 0) in_whole += each.name + " ";
    }
    EXPECT_EQ(in_whole, "");
    EXPECT_EQ(rows_in_parts(engine), 1);
  });
}

// Of a table whose rows are cut the gradient is of each rank's own, with padding and what is looked up twice; sparse
// and scaled ones are whole.
struct Tables : torch::nn::Module {
  explicit Tables(const torch::nn::EmbeddingOptions& options)
      : table(register_module("table", torch::nn::Embedding(options))) {}
  Tensor loss(std::int64_t index) {
    const Tensor ids = tokens(index, {3, 5}, 12);
    return (table(ids) * table(ids.flip(0))).tanh().square().mean();
  }
  torch::nn::Embedding table;
};

TEST(TensorAxis, AddsUpRowsThatItHas) {
  using torch::nn::EmbeddingOptions;
  const EmbeddingOptions plain(12, 4);
  for (const EmbeddingOptions& options :
       {plain, EmbeddingOptions(plain).padding_idx(7), EmbeddingOptions(plain).sparse(true),
        EmbeddingOptions(plain).scale_grad_by_freq(true)}) {
    const Course<Tables> course{.make = [=] { return std::make_shared<Tables>(options); }};
    const Job whole{.plan = Plan::zero3(), .ranks = 1, .optimizer = Sgd{.lr = .5}, .steps = 3};
    for (const int tensor : {2, 4}) {
      Job cut = whole;
      cut.ranks = cut.tensor = tensor;
      cut.options.tensor = tensor_named({{"table", TensorCut::column}});
      EXPECT_EQ(difference(train(whole, course), train(cut, course), kTolerance), "");
      const bool in_parts = !options.sparse() && !options.scale_grad_by_freq();
      on_ranks(cut, course, [&](Tables& model, Engine& engine, int) {
        train_step(model, engine);
        EXPECT_EQ(rows_in_parts(engine), in_parts ? 2 : 0);
      });
    }
  }
}

// Numbers that a program writes before backward has read them are an error, as they are without engines.
TEST(TensorAxis, KnowsOfNumbersThatAreWritten) {
  Job cut{.plan = Plan::zero3(), .ranks = 2, .tensor = 2};
  cut.options.tensor = tensor_named({{"table", TensorCut::column}});
  const Course<Tables> course{.make = [] { return std::make_shared<Tables>(torch::nn::EmbeddingOptions(12, 4)); }};
  on_ranks(cut, course, [&](Tables& model, Engine&, int) {
    Tensor ids = tokens(0, {3}, 12);
    const Tensor loss = model.table(ids).sum();
    ids.fill_(1);
    EXPECT_TRUE(says(thrown_by([&] { loss.backward(); }), {"modified by an inplace operation"}));
  });
}

// Four sums a layer of all hidden states, forward and backward, and one at either end; along the sequence each is a
// gather and a sum of parts, of as many bytes. Beside them the loss: of each row the largest logit, the sum of
// exponentials, the one that is looked for, and the sum of its gradient; and the norms' gradients, where they are of
// parts.
TEST(TensorAxis, MovesWhatMegatronDoes) {
  constexpr std::int64_t layers = 2, rows = 2 * 8, hidden = rows * 32 * 4;  // bytes
  for (const bool sequence : {false, true}) {
    Job cut{
        .plan = Plan::zero3(), .ranks = 2, .options = {.tensor = kLlama, .sequence_parallel = sequence}, .tensor = 2};
    on_ranks(cut, Course<LlamaOfModels>{}, [&](LlamaOfModels& model, Engine& engine, int) {
      engine.reset_traffic();
      train_step(model, engine);
      const Traffic moved = engine.tensor_traffic();
      const std::int64_t norms = sequence ? (2 * layers + 1) * 32 * 4 : 0;
      EXPECT_EQ(moved.bytes(), (4 * layers + 2) * hidden + 4 * rows * 4 + norms);
      EXPECT_EQ(moved[Collective::reduce_scatter].calls, sequence ? 4 * layers + 2 : 0);
    });
  }
}

// Fused projections, whose thirds are views along what is cut, and positions that are a part of a table.
struct FusedGpt : torch::nn::Module {
  FusedGpt() {
    register_module("words", words);
    register_module("positions", positions);
    register_module("qkv", qkv);
    register_module("o", o);
    register_module("head", head);
  }
  Tensor loss(std::int64_t index) {
    const Tensor ids = tokens(index, {1, 9}, 24);
    const Tensor x = words(ids.slice(1, 0, 8)) + positions->weight.slice(0, 0, 8);
    const auto parts = qkv(x).chunk(3, -1);
    const auto heads = [](const Tensor& y) { return y.view({1, 8, 2, 8}).transpose(1, 2); };
    const Tensor y = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0, true);
    const Tensor logits = head(x + o(y.transpose(1, 2).reshape(x.sizes())));
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.slice(1, 1).flatten());
  }
  torch::nn::Embedding words{24, 16}, positions{10, 16};
  torch::nn::Linear qkv{16, 48}, o{16, 16}, head{16, 24};
};

TEST(TensorAxis, SeesUpdatesInViewsThatAreCopies) {
  const Job whole{.plan = Plan::zero3(), .ranks = 1, .steps = 4};
  for (const bool sequence : {false, true}) {
    Job cut = whole;
    cut.ranks = cut.tensor = 2;
    cut.options.sequence_parallel = sequence;
    cut.options.tensor = tensor_named({{"words", TensorCut::column},
                                       {"positions", TensorCut::column},
                                       {"qkv", TensorCut::column},
                                       {"o", TensorCut::row},
                                       {"head", TensorCut::column}});
    EXPECT_EQ(difference(train<FusedGpt>(whole), train<FusedGpt>(cut), kTolerance), "");
  }
}

TEST(TensorAxis, TakesWhatOneRankWrites) {
  Job job = cut_job({.plan = Plan::zero3(), .ranks = 2}, 2);
  on_ranks(job, Course<Gpt>{}, [](Gpt& model, Engine& engine, int rank) {
    const at::Tensor& weight = model.norm->weight;
    for (const int writer : {3, 0}) {
      {
        const auto scope = gather({weight}, writer);
        const torch::NoGradGuard no_grad;
        if (rank == writer) weight.fill_(writer + 5);
      }
      EXPECT_TRUE(at::equal(engine.main_parameter(weight).cpu(), at::full({16}, writer + 5.))) << rank;
    }
    const auto writes_alone = [&] { const auto scope = gather({model.blocks->ptr<GptBlockImpl>(0)->up->weight}, 1); };
    EXPECT_TRUE(says(thrown_by(writes_alone), {"parameter 'blocks.0.up.weight' is cut over the tensor axis"}));
  });
}

TEST(TensorAxis, GivesBackWhatIsComputedWith) {
  Job job = small();
  job.plan = Plan::ddp().bf16();
  on_ranks(job, Course<Gpt>{}, [](Gpt& model, Engine& engine, int) {
    train_step(model, engine);
    const at::Tensor& weight = model.blocks->ptr<GptBlockImpl>(0)->up->weight;
    const at::Tensor expected = whole(weight);
    engine.release(ReleaseAs::computed);
    EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(weight.detach(), expected));
  });
}

TEST(TensorAxis, RefusesWhatItCannotDo) {
  const auto refused = [](const std::function<void(Job&)>& change) {
    Job job = small();
    change(job);
    return thrown_by([&] { on_ranks(job, Course<Gpt>{}, [](Gpt&, Engine&, int) {}); });
  };
  EXPECT_TRUE(says(refused([](Job& job) { job.options.tensor = {}; }), {"Options::tensor takes no parameter"}));
  EXPECT_TRUE(says(refused([](Job& job) {
                     job.options.tensor = tensor_named({{"*.upp", TensorCut::column}});
                   }),
                   {"Options::tensor takes no parameter"}));
  EXPECT_TRUE(says(refused([](Job& job) { job.ranks = job.tensor = 3; }),
                   {"parameter 'blocks.0.q.weight' of shape [16, 16]", "3 ranks do not divide 16"}));
  EXPECT_TRUE(says(refused([](Job& job) { job.optimizer = Muon{}; }), {"which is cut, takes whole tensors"}));
  EXPECT_TRUE(says(refused([](Job& job) { job.plan = job.plan.activation_budget({.share = .5}); }),
                   {"Plan::activation_budget"}));
  EXPECT_TRUE(says(refused([](Job& job) { job.plan = job.plan.gather_in(Wire::int8); }), {"the wire int8"}));
}

}  // namespace zero::test::tensor_axis_test

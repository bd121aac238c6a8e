// Layers that are several in one, cut in blocks over a tensor axis: queries, keys and values of one product, gates and
// what they gate, attention by hand.
#include <torch/torch.h>

#include <mutex>

#include "folder.h"
#include "fused_gpt.h"
#include "harness.h"
#include "saved_states.h"

namespace zero::test::tensor_blocks_test {

using at::Tensor;
using torch::nn::Linear;

constexpr double kTolerance = 1e-5;

Job cut_in_blocks(Job job, int tensor) {
  job.options.tensor = kFused;
  job.tensor = tensor;
  job.ranks *= tensor;
  return job;
}

std::string whole_operators(const Engine& engine) {
  std::string names;
  for (const TensorOperator& each : engine.tensor_operators())
    if (each.whole > 0) names += each.name + " ";
  return names;
}

TEST(TensorBlocks, TrainAsOneRankDoes) {
  for (const Plan& plan : {Plan::ddp(), Plan::zero2(), Plan::zero3(), Plan::zero3().bf16()})
    for (const auto& [data, tensor] : {std::pair(1, 2), std::pair(1, 4), std::pair(2, 2)}) {
      const Job whole{.plan = plan, .ranks = data, .options = {.clip = .5}, .steps = 3};
      const double tolerance = plan.precision() == Precision::fp32 ? kTolerance : .02;
      EXPECT_EQ(difference(train(whole, fused_with_dropout()),
                           train(cut_in_blocks(whole, tensor), fused_with_dropout()), tolerance),
                "")
          << plan.label() << " on " << data << " x " << tensor;
    }
}

TEST(TensorBlocks, RunNothingWhole) {
  for (const bool sequence : {false, true}) {
    Job job = cut_in_blocks({.plan = Plan::zero3(), .ranks = 1}, 2);
    job.options.sequence_parallel = sequence;
    on_ranks(job, fused_with_dropout(), [&](Fused& model, Engine& engine, int) {
      train_step(model, engine);
      EXPECT_EQ(whole_operators(engine), "");
    });
  }
}

TEST(TensorBlocks, MoveWhatMegatronDoes) {
  constexpr std::int64_t layers = 2, rows = 2 * FusedBlockImpl::kLength, hidden = rows * FusedBlockImpl::kSize * 4;
  on_ranks(cut_in_blocks({.plan = Plan::zero3(), .ranks = 1}, 2), Course<Fused>{},
           [&](Fused& model, Engine& engine, int) {
             train_step(model, engine);
             engine.reset_traffic();
             train_step(model, engine);
             EXPECT_EQ(engine.tensor_traffic().bytes(), (4 * layers + 2) * hidden + 4 * rows * 4);
           });
}

TEST(TensorBlocks, HaveTheBitsOfOneRankInTiles) {
  const OneThread alone;
  for (const Plan& plan : {Plan::ddp(), Plan::zero3().bf16()}) {
    Job one{.plan = plan, .ranks = 1, .options = {.clip = .5}, .steps = 3};
    one.options.tensor_grain = 4;
    one.options.tensor = kFused;
    const Outcome expected = train(one, fused_with_dropout());
    for (const int tensor : {2, 4})
      EXPECT_EQ(difference(expected, train(cut_in_blocks(one, tensor), fused_with_dropout())), "")
          << plan.label() << " on " << tensor;
  }
}

// Of a module whose values are made when it has its place, and of what a program makes of it by ordinary operators.
struct Wide : torch::nn::Module {
  Wide() : in(register_module("in", Linear(32, 96))), out(register_module("out", Linear(32, 32))) {}
  Tensor loss(std::int64_t index) {
    const auto thirds = in(numbers(index, {4, 32})).chunk(3, -1);
    return out(thirds[0] * thirds[1] + thirds[2]).square().mean();
  }
  Linear in, out;
};

TEST(TensorBlocks, AreOfModulesThatAreDeferred) {
  const auto losses = [](bool defer) {
    std::vector<double> all;
    std::mutex drawing;  // threads have one generator
    run_ranks(2, [&](const World& world) {
      const auto made = [&] {
        const std::lock_guard lock(drawing);
        torch::manual_seed(7);
        const auto make = [] { return std::make_shared<Wide>(); };
        return defer ? zero::deferred(make) : make();
      };
      const std::shared_ptr<Wide> model = made();
      model->to(device_of_rank());
      Options options{.tensor = tensor_named({{"in", TensorCut::column.in_blocks(3)}, {"out", TensorCut::row}})};
      Engine engine(*model, Mesh(world, {.tensor = 2}), Plan::zero3(), AdamW{}, options);
      for (int step = 0; step < 2; ++step) {
        engine.backward(model->loss(step));
        const double loss = engine.step().loss;
        if (world.rank() == 0) all.push_back(loss);
      }
    });
    return all;
  };
  EXPECT_EQ(losses(false).size(), 2U);
  EXPECT_EQ(losses(true), losses(false));
}

// In checkpoints there are no blocks.
TEST(TensorBlocks, GoOnFromAnyOtherCut) {
  const Job four = cut_in_blocks({.plan = Plan::zero3(), .ranks = 1}, 4), flat{.plan = Plan::zero3(), .ranks = 4},
            pairs = cut_in_blocks({.plan = Plan::zero3(), .ranks = 2}, 2);
  Job rows = four;
  rows.options.tensor = tensor_named({{"*.c_attn", TensorCut::row}, {"*.gate_up", TensorCut::column}});
  const std::vector<Job> jobs{four, flat, pairs, rows};
  for (const Job& saving : jobs) {
    const Folder folder;
    const auto saved = state_of<Fused>(saving, folder.path() + "/a", 2);
    EXPECT_EQ(saved->faults(), "");
    for (const Job& job : jobs)
      EXPECT_EQ(difference(*saved, *state_of<Fused>(job, folder.path() + "/a", 0)), "") << describe(job);
  }
}

// Gradients, main parameters and scopes are of the whole.
TEST(TensorBlocks, AreNotSeenFromOutside) {
  std::map<std::string, Tensor> gradients, values;
  on_ranks(Job{.plan = Plan::zero3(), .ranks = 1}, Course<Fused>{}, [&](Fused& model, Engine& engine, int) {
    engine.backward(model.loss(engine.micro_batch()));
    for (const auto& item : model.named_parameters()) {
      gradients[item.key()] = engine.gradient(item.value()).cpu();
      values[item.key()] = engine.main_parameter(item.value()).cpu();
    }
  });
  on_ranks(
      cut_in_blocks({.plan = Plan::zero3(), .ranks = 1}, 4), Course<Fused>{}, [&](Fused& model, Engine& engine, int) {
        engine.backward(model.loss(engine.micro_batch()));
        for (const auto& item : model.named_parameters()) {
          const Tensor gradient = whole(engine.gradient(item.value()).cpu());
          EXPECT_TRUE(at::allclose(gradient, gradients.at(item.key()), kTolerance, 1e-7)) << item.key();
          EXPECT_TRUE(at::equal(whole(engine.main_parameter(item.value()).cpu()), values.at(item.key()))) << item.key();
        }
        const Tensor& weight = model.blocks->ptr<FusedBlockImpl>(0)->c_attn->weight;
        const Tensor wanted = numbers(3, weight.sizes()).to(device_of_rank());
        {
          const auto scope = gather({weight});
          const torch::NoGradGuard no_grad;
          weight.copy_(wanted);
        }
        EXPECT_TRUE(at::equal(whole(weight), wanted));
        engine.release();
        EXPECT_TRUE(at::equal(model.blocks->ptr<FusedBlockImpl>(0)->c_attn->weight, wanted));
      });
}

std::string cuts_of(const torch::nn::Module& module, const TensorRule& rule) {
  std::string text;
  for (const auto& item : module.named_parameters())
    if (const auto cut = rule({item.key(), item.value().sizes().vec(), false, false}))
      text += (text.empty() ? "" : ", ") + item.key() + " " + name(*cut);
  return text;
}

TEST(TensorBlocks, AreFoundByThemselves) {
  Fused model;
  model.to(device_of_rank());
  std::string layers;
  for (const std::string layer : {"blocks.0.", "blocks.1."})
    for (const char* const each : {"c_attn.weight column/3", "c_attn.bias column/3", "c_proj.weight row",
                                   "gate_up.weight column/2", "down.weight row"})
      layers += (layers.empty() ? "" : ", ") + layer + each;
  for (const int ranks : {2, 4})
    EXPECT_EQ(cuts_of(model, tensor_automatic(model, ranks, [&] { model.loss(0).backward(); })), layers);
}

// LibTorch's own layers, whose attention merges sequences and heads.
struct Encoder : torch::nn::Module {
  static constexpr std::int64_t kSize = 16;
  Encoder()
      : encoder(register_module(
            "encoder", torch::nn::TransformerEncoder(
                           torch::nn::TransformerEncoderLayer(
                               torch::nn::TransformerEncoderLayerOptions(kSize, 4).dim_feedforward(32).dropout(.1)),
                           2))),
        out(register_module("out", Linear(kSize, 24))) {}
  Tensor loss(std::int64_t index) {
    const Tensor ids = tokens(index, {6, 2}, 24);  // [length, batch]
    return torch::nn::functional::cross_entropy(out(encoder(numbers(index, {6, 2, kSize}))).flatten(0, 1),
                                                ids.flatten());
  }
  torch::nn::TransformerEncoder encoder;
  Linear out;
};

TEST(TensorBlocks, AreFoundInLayersOfLibTorch) {
  Encoder model;
  model.to(device_of_rank());
  const TensorRule rule = tensor_automatic(model, 2, [&] { model.loss(0).backward(); });
  const auto of = [&](const std::string& parameter) {
    return rule({parameter, model.named_parameters()[parameter].sizes().vec(), false, false});
  };
  EXPECT_EQ(of("encoder.layers.1.self_attn.in_proj_weight"), TensorCut::column.in_blocks(3));
  EXPECT_EQ(of("encoder.layers.1.self_attn.out_proj.weight"), TensorCut::row);
  EXPECT_EQ(of("encoder.layers.1.linear2.weight"), TensorCut::row);
  for (const int data : {1, 2}) {
    const Job whole{.plan = Plan::zero3(), .ranks = data, .steps = 3};
    Job cut = whole;
    cut.options.tensor = rule;
    cut.ranks *= cut.tensor = 2;
    EXPECT_EQ(difference(train<Encoder>(whole), train<Encoder>(cut), kTolerance), "");
    on_ranks(cut, Course<Encoder>{}, [&](Encoder& each, Engine& engine, int) {
      train_step(each, engine);
      EXPECT_EQ(whole_operators(engine), "");
    });
  }
}

TEST(TensorBlocks, AreToldByAPlan) {
  const TensorRule rule = tensor_plan({{"c_attn", "column/3"}, {"gate_up_proj", "packed_colwise"}, {"mix", "row/2"}});
  const auto of = [&](const char* parameter) { return rule({parameter, {8, 8}, false, false}); };
  EXPECT_EQ(of("h.0.c_attn.weight"), TensorCut::column.in_blocks(3));
  EXPECT_EQ(of("h.0.gate_up_proj.weight"), TensorCut::column.in_blocks(2));
  EXPECT_EQ(of("h.0.mix.weight"), TensorCut::row.in_blocks(2));
  EXPECT_EQ(name(*of("h.0.mix.weight")), "row/2");
  for (const char* const style : {"column/", "column/0", "column/-1", "column/3x", "columns/3"})
    EXPECT_TRUE(says(thrown_by([&] { tensor_plan({{"c_attn", style}}); }), {style, "c_attn"}));
}

TEST(TensorBlocks, AreRefusedWhereRanksDoNotDivideThem) {
  Job job = cut_in_blocks({.plan = Plan::zero3(), .ranks = 1}, 2);
  job.options.tensor = tensor_named({{"*.c_attn", TensorCut::column.in_blocks(16)}});
  EXPECT_TRUE(says(thrown_by([&] { on_ranks(job, Course<Fused>{}, [](Fused&, Engine&, int) {}); }),
                   {"parameter 'blocks.0.c_attn.weight' of shape [48, 16]", "2 ranks do not divide 48, of 16 blocks"}));
  job.options.tensor = tensor_named({{"*.c_attn", TensorCut::column.in_blocks(0)}});
  EXPECT_TRUE(says(thrown_by([&] { on_ranks(job, Course<Fused>{}, [](Fused&, Engine&, int) {}); }),
                   {"cannot be cut in 0 blocks"}));
}

}  // namespace zero::test::tensor_blocks_test

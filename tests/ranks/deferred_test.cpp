// Modules that are built without memory: their bits, the generator's state, what it takes, and what cannot be.
#include "zero/deferred.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "covering.h"
#include "larger.h"
#include "memory/torch/arena_allocator.h"

namespace zero::test::deferred_test {

// A module and what is drawn after it.
struct Built {
  std::shared_ptr<nn::Module> module;
  at::Tensor next;
};
template <class Build>
Built built(const Build& build) {
  torch::manual_seed(5);
  Built result{build(), {}};
  result.next = torch::cat({torch::rand({3}), torch::randn({5})});
  return result;
}

void expect_same(const Built& whole, const Built& deferred) {
  EXPECT_TRUE(at::equal(whole.next, deferred.next)) << "the generator is elsewhere";
  const auto expected = values_of(*whole.module), values = values_of(*deferred.module);
  ASSERT_EQ(expected.size(), values.size());
  for (const auto& [name, tensor] : expected) {
    const at::Tensor& other = values.at(name);
    EXPECT_EQ(tensor.scalar_type(), other.scalar_type()) << name;
    EXPECT_EQ(tensor.strides(), other.strides()) << name;
    EXPECT_FALSE(waits(other)) << name;
    EXPECT_TRUE(at::equal(tensor, other)) << name;
  }
}

// `at_least` of its tensors are deferred until it is materialized.
template <class Build>
void expect_deferred(int at_least, const Build& build) {
  const Built whole = built(build);
  const Built deferred = built([&] { return zero::deferred(build); });
  int waiting = 0;
  for (const auto& [name, tensor] : values_of(*deferred.module)) waiting += waits(tensor) ? 1 : 0;
  EXPECT_GE(waiting, at_least);
  materialize(*deferred.module);
  expect_same(whole, deferred);
}

template <class Holder>
std::function<std::shared_ptr<nn::Module>()> a(const Holder& make) {
  return [make] { return make().ptr(); };
}

TEST(Deferred, ModulesOfLibTorchHaveTheirBits) {
  expect_deferred(1, a([] { return nn::Linear(50, 40); }));
  expect_deferred(1, a([] { return nn::Conv2d(nn::Conv2dOptions(8, 32, 3)); }));
  expect_deferred(4, a([] { return nn::LSTM(nn::LSTMOptions(40, 40).num_layers(2).bidirectional(true)); }));
  expect_deferred(4, a([] { return nn::GRU(nn::GRUOptions(40, 40).num_layers(2)); }));
  expect_deferred(1, a([] { return nn::Embedding(nn::EmbeddingOptions(100, 40).padding_idx(3)); }));
  expect_deferred(4, a([] { return nn::BatchNorm1d(2000); }));
  expect_deferred(2, a([] { return nn::MultiheadAttention(40, 4); }));
  expect_deferred(8, a([] {
                    return nn::TransformerEncoder(nn::TransformerEncoderOptions(
                        nn::TransformerEncoderLayerOptions(48, 4).dim_feedforward(96), 2));
                  }));
}

// What others write in constructors.
struct Written : nn::Module {
  Written()
      : linear(register_module("linear", nn::Linear(60, 50))),
        tied(register_parameter("tied", linear->weight)),
        drawn(register_parameter("drawn", torch::randn({60, 50}) * 0.02)),
        turned(register_parameter("turned", torch::empty({80, 60}))),
        table(register_buffer("table", torch::outer(torch::arange(3000, torch::kFloat),
                                                    torch::pow(10000, -torch::arange(8, torch::kFloat) / 8))
                                           .cos())),
        wide(register_parameter("wide", torch::rand({50, 50}, torch::kDouble))),
        narrow(register_parameter("narrow", torch::randn({60, 60}).to(torch::kBFloat16))),
        places(register_buffer("places", torch::randperm(2000))) {
    nn::init::orthogonal_(turned);
    apply([](nn::Module& module) {
      const torch::NoGradGuard no_grad;
      if (auto* const each = module.as<nn::Linear>()) nn::init::xavier_normal_(each->weight);
    });
    write();
  }

  void write() {
    const torch::NoGradGuard no_grad;
    drawn[3].zero_();
    drawn.index_put_({torch::tensor({1, 2})}, 5.0);
    drawn.index_put_({places.slice(0, 0, 2000).remainder(60), torch::tensor(4)}, -1.0);
    drawn.narrow(1, 5, 10).uniform_(-1, 1);
    linear->weight.mul_(1 / std::sqrt(2.0));
    linear->bias.fill_(0.5);
    wide.copy_(wide.t().clone()).clamp_(0.1, 0.9);
    // Each reads what the other was.
    const at::Tensor before = linear->weight.clone();
    linear->weight.add_(drawn.t());
    drawn.add_(before.t());
    std::vector<float> data(3000);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = 0.25f * static_cast<float>(i);
    given = register_parameter("given", torch::zeros({3000}));
    given.copy_(torch::from_blob(data.data(), {3000}));
    std::fill(data.begin(), data.end(), 0.f);
    register_parameter("masked", torch::randn({40, 40}).masked_fill_(torch::ones({40, 40}).tril().eq(0), 0));
  }

  nn::Linear linear;
  at::Tensor tied, drawn, turned, table, wide, narrow, places, given;
};

TEST(Deferred, WhatConstructorsWriteHasItsBits) {
  const auto make = [] { return std::make_shared<Written>(); };
  expect_deferred(8, make);
  const auto module = zero::deferred(make);
  materialize(*module);
  EXPECT_TRUE(module->linear->weight.is_same(module->tied));
}

// Before it is materialized, outside of the call.
TEST(Deferred, IsConvertedAndWrittenLater) {
  const auto change = [](const std::shared_ptr<Written>& module) {
    module->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    module->drawn[0].fill_(2);
    module->linear->weight.normal_();
    return module;
  };
  const Built whole = built([&] { return change(std::make_shared<Written>()); });
  const Built deferred = built([&] { return change(zero::deferred([] { return std::make_shared<Written>(); })); });
  EXPECT_TRUE(waits(static_cast<Written&>(*deferred.module).drawn));
  materialize(*deferred.module);
  expect_same(whole, deferred);
}

TEST(Deferred, CallsInsideCallsAreOne) {
  const auto make = [] {
    auto inner = zero::deferred([] { return nn::Linear(40, 40); });
    return std::make_pair(inner, nn::Linear(40, 40));
  };
  const auto [inner, outer] = zero::deferred(make);
  EXPECT_TRUE(waits(inner->weight) && waits(outer->weight));
  EXPECT_FALSE(waits(nn::Linear(40, 40)->weight));
}

TEST(Deferred, AnExceptionLeavesTheThreadAsItWas) {
  EXPECT_EQ(thrown_by([] {
              zero::deferred([]() -> nn::Linear {
                const nn::Linear lost(40, 40);
                throw std::runtime_error("no");
              });
            }),
            "no");
  EXPECT_FALSE(deferred_tensors::under_way());
  EXPECT_FALSE(waits(torch::zeros({4000})));
}

TEST(Deferred, TakesNoMemory) {
  use_reporting_allocator();
  struct Most {
    static void count(std::size_t bytes) { largest() = std::max(largest(), bytes); }
    static std::size_t& largest() {
      static thread_local std::size_t bytes = 0;
      return bytes;
    }
  };
  const auto in_use = [] { return host_usage().small + host_usage().arena_live; };
  const std::int64_t before = in_use();
  set_allocation_probe(&Most::count);
  const auto module = zero::deferred([] {
    nn::Sequential layers;
    for (int i = 0; i < 64; ++i) layers->push_back(nn::Linear(nn::LinearOptions(256, 256).bias(false)));
    return layers;
  });
  set_allocation_probe(nullptr);
  const std::int64_t each = 256 * 256 * 4;
  EXPECT_LT(in_use() - before, 2 * each);  // states of the generator, of 5 KB
  EXPECT_LE(Most::largest(), static_cast<std::size_t>(each + 64));
}

TEST(Deferred, WhatNeedsValuesSaysSo) {
  const auto inside = [](const auto& use) {
    return thrown_by([&] { zero::deferred([&] { use(torch::randn({100, 100})); }); });
  };
  const std::vector<std::string> whose{"Float [100, 100]", "aten::empty made", "zero::materialize()"};
  EXPECT_TRUE(says(inside([](const at::Tensor& x) { static_cast<void>(x.sum().item<float>()); }),
                   {"operator aten::_local_scalar_dense needs the values of", "aten::sum made"}));
  EXPECT_TRUE(says(inside([](const at::Tensor& x) { static_cast<void>(x.nonzero()); }), whose));
  EXPECT_TRUE(says(inside([](const at::Tensor& x) { static_cast<void>(at::equal(x, x.clone())); }),
                   {"operator aten::equal needs the values of"}));
  EXPECT_TRUE(says(inside([](const at::Tensor& x) { static_cast<void>(x.data_ptr<float>()); }), whose));

  nn::Linear used = zero::deferred([] { return nn::Linear(100, 100); });
  EXPECT_TRUE(says(thrown_by([&] {
                     used->forward(torch::ones({2, 100}));
                   }),
                   {"operator aten::addmm was called outside of zero::deferred", "'weight'", "zero::materialize()"}));
  std::ostringstream text;
  EXPECT_TRUE(says(thrown_by([&] { text << used->weight; }), {"'weight'"}));
  materialize(*used);
  EXPECT_EQ(thrown_by([&] { used->forward(torch::ones({2, 100})); }), "");
}

TEST(Deferred, NoEngineIsBuiltInside) {
  run_ranks(1, [](const World& world) {
    EXPECT_TRUE(says(thrown_by([&] {
                       zero::deferred([&] {
                         nn::Linear model(100, 100);
                         const Engine engine(*model, world, Plan::ddp(), Sgd{});
                       });
                     }),
                     {"inside zero::deferred"}));
  });
}

// What is no parameter and no buffer has its values when it is used.
TEST(Deferred, ConstantsInMembersAreThereWhenTheyAreUsed) {
  const auto make = [] {
    torch::manual_seed(2);
    const at::Tensor base = torch::randn({50, 50});
    return std::make_pair(base * 2, base.view({2500}));
  };
  const auto whole = make(), later = zero::deferred(make);
  EXPECT_TRUE(waits(later.first) && waits(later.second));
  EXPECT_EQ(later.second.sum().item<float>(), whole.second.sum().item<float>());
  EXPECT_TRUE(at::equal(later.first, whole.first));
}

using Under = std::tuple<Plan, int, Precision>;
class DeferredUnder : public testing::TestWithParam<Under> {};

TEST_P(DeferredUnder, TrainsWithTheBitsOfBuildingItWhole) {
  const auto& [plan, ranks, precision] = GetParam();
  const Job job{plan.precision(precision), ranks};
  EXPECT_EQ(difference(train(job, larger(false)), train(job, larger(true))), "");
  EXPECT_EQ(difference(train(job, larger(false, at::kBFloat16)), train(job, larger(true, at::kBFloat16))), "");
}

std::string name_of(const testing::TestParamInfo<Under>& tested) {
  const auto& [plan, ranks, precision] = tested.param;
  return in_title(ranks, 1, precision) + in_title(plan.label());
}

INSTANTIATE_TEST_SUITE_P(All, DeferredUnder,
                         testing::ValuesIn(covering(plans_of_meshes(), std::vector{1, 2, 4},
                                                    std::vector{Precision::fp32, Precision::bf16,
                                                                Precision::bf16_kahan})),
                         name_of);

thread_local int blocks_left = -1;  // that this thread still gets; negative: all

// The program's generator is where it was, also on rank 0; what failed, wherever memory ended, can be tried again.
TEST(DeferredEngine, LeavesGeneratorAndModuleAsTheyWere) {
  use_reporting_allocator();
  set_allocation_probe([](std::size_t) {
    if (blocks_left >= 0 && blocks_left-- == 0) throw std::bad_alloc();
  });
  run_ranks(1, [](const World& world) {
    const std::shared_ptr<Larger> model = larger(true).make();
    const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
    std::unique_ptr<Engine> built;
    for (int blocks = 0; !built; ++blocks) {
      ASSERT_LT(blocks, 1000);
      blocks_left = blocks;
      thrown_by([&] { built = std::make_unique<Engine>(*model, world, Plan::zero3(), AdamW{}); });
      blocks_left = -1;
      ASSERT_NE(waits(model->embed->weight), built != nullptr) << "after " << blocks << " blocks";
      ASSERT_NE(waits(model->scale), built != nullptr) << "after " << blocks << " blocks";
    }
    Engine& engine = *built;
    EXPECT_TRUE(at::equal(state, at::detail::getDefaultCPUGenerator().get_state()));
    EXPECT_FALSE(waits(model->embed->weight) || waits(model->scale));
    EXPECT_FALSE(model->scale.key_set().has(c10::DispatchKey::Fake));
    engine.release();
    EXPECT_TRUE(at::equal(model->embed->weight, larger(false).make()->embed->weight));
  });
  set_allocation_probe(nullptr);
}

// The largest unit's values, beside the states: to the byte.
TEST(DeferredEngine, HoldsWhatWasForeseenWhileItIsBuilt) {
  for (const Plan& plan : {Plan::ddp(), Plan::zero1().bf16(), Plan::zero3(), Plan::zero3().bf16()})
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(plan.label());
      on_ranks<Larger>({.plan = plan, .ranks = ranks}, larger(true), [](Larger&, Engine& engine, int) {
        EXPECT_EQ(engine.building().peak_held, engine.estimate().building);
        EXPECT_EQ(engine.building().total(), engine.ledger().total());
      });
    }
  Job job{Plan::zero3().bf16().offload(State::optimizer, Tier::disk), 2};
  job.options.disk = {.directories = {std::filesystem::temp_directory_path()}, .block = 16384, .depth = 4};
  on_ranks<Larger>(job, larger(true), [](Larger&, Engine& engine, int) {
    EXPECT_GT(engine.building().peak_held, 61 * 40 * 4);
    EXPECT_LE(engine.building().peak_held, engine.estimate().building);
  });
}

}  // namespace zero::test::deferred_test

// A checkpoint of one optimizer, and another one that is to go on from it.
#include <torch/torch.h>

#include <cmath>
#include <mutex>

#include "folder.h"
#include "harness.h"
#include "persist/env.h"
#include "persist/manifest.h"
#include "torch_optimizers.h"
#include "zero/error.h"

namespace zero::test::other_optimizers_test {

struct Net : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return second(torch::tanh(first(numbers(index, {3, 8})))).square().mean(); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 8));
};

StepReport stepped(Net& net, Engine& engine) {
  engine.backward(net.loss(engine.micro_batch()));
  return engine.step();
}

// Trains three steps, and saves.
void save(const Optimizer& optimizer, const std::string& folder, const std::vector<ParamGroup>& groups = {}) {
  run_ranks(2, [&](const World& world) {
    Net net;
    initialise(net, kSeed);
    Engine engine(net, world, Plan::zero3(), optimizer, {.groups = groups});
    for (int step = 0; step < 3; ++step) stepped(net, engine);
    engine.save(folder);
  });
}

// On two ranks, of a network and an engine of another plan.
void on_loading(const Optimizer& optimizer, const std::vector<ParamGroup>& groups,
                const std::function<void(Net& net, Engine& engine)>& use) {
  run_ranks(2, [&](const World& world) {
    Net net;
    initialise(net, kSeed + 1);
    Engine engine(net, world, Plan::zero1(), optimizer, {.groups = groups});
    use(net, engine);
  });
}

// Those that keep the same have the same number.
std::vector<std::pair<Optimizer, int>> optimizers() {
  return {{Sgd{.lr = 0.05}, 0},
          {Sgd{.lr = 0.05, .momentum = 0.9}, 1},
          {AdaGrad{}, 2},
          {RmsProp{.lr = 1e-3}, 3},
          {RmsProp{.lr = 1e-3, .centered = true}, 4},
          {RmsProp{.lr = 1e-3, .momentum = 0.9}, 5},
          {RmsProp{.lr = 1e-3, .momentum = 0.9, .centered = true}, 6},
          {Adam{}, 7},
          {AdamW{}, 7},
          {Lamb{}, 7},
          {Adam{.amsgrad = true}, 8},
          {AdamW{.amsgrad = true}, 8},
          {Lion{}, 9},
          {Muon{}, 10},
          {Adafactor{}, 11},
          {AdamW{.format = MomentFormat::bf16}, 12},
          {brought<torch::optim::Adagrad>(torch::optim::AdagradOptions(), "Adagrad"), 13},
          {brought<torch::optim::AdamW>(torch::optim::AdamWOptions(), "AdamW"), 14},
          {brought<torch::optim::Adam>(torch::optim::AdamOptions(), "Adam"), 15}};
}

TEST(OtherOptimizers, GoOnWhereTheyKeepTheSameAndAreRefusedElsewhere) {
  const Folder folder;
  const auto all = optimizers();
  const auto place = [&](std::size_t i) { return folder.path() + "/" + std::to_string(i); };
  for (std::size_t i = 0; i < all.size(); ++i) save(all[i].first, place(i));
  for (const auto& [optimizer, keeps] : all)
    on_loading(optimizer, {}, [&, keeps = keeps, &optimizer = optimizer](Net& net, Engine& engine) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        SCOPED_TRACE("from " + describe(all[i].first) + " to " + describe(optimizer));
        const std::string told = thrown_by([&] { engine.load(place(i)); });
        if (all[i].second == keeps) {
          EXPECT_EQ(told, "");
        } else {
          EXPECT_TRUE(says(told, {"first.weight", "allow_new_optimizer"}));
          EXPECT_NO_THROW(engine.load(place(i), {.allow_new_optimizer = true}));
        }
        EXPECT_EQ(engine.state().scalars().updates.at("first.weight"), all[i].second == keeps ? 3 : 0);
        EXPECT_EQ(engine.steps(), 3);
        for (int step = 0; step < 2; ++step) {
          const StepReport report = stepped(net, engine);
          EXPECT_TRUE(report.applied && std::isfinite(report.loss) && report.loss < 10) << report.loss;
        }
      }
    });
}

TEST(OtherOptimizers, AreNamedWithWhatTheyKeep) {
  const Folder folder;
  save(RmsProp{.momentum = 0.9}, folder.path());
  on_loading(AdamW{}, {}, [&](Net&, Engine& engine) {
    EXPECT_TRUE(says(thrown_by([&] { engine.load(folder.path()); }),
                     {"the optimizer's state is of rmsprop (momentum_buffer, square_avg), and not of adamw (exp_avg, "
                      "exp_avg_sq): first.weight, first.bias, second.weight, second.bias"}));
  });
  const Folder adamw;
  save(AdamW{}, adamw.path());
  on_loading(AdamW{.amsgrad = true}, {}, [&](Net&, Engine& engine) {
    EXPECT_TRUE(says(thrown_by([&] { engine.load(adamw.path()); }),
                     {"first.weight moment max_exp_avg_sq, fp32 [8, 8], is missing"}));
  });
}

// Of a group, those alone.
TEST(OtherOptimizers, OfGroupsAreToldByParameter) {
  const auto biases = [](const Optimizer& optimizer) {
    return std::vector<ParamGroup>{
        {.takes = [](const ParameterInfo& info) { return info.shape.size() == 1; }, .optimizer = optimizer}};
  };
  const Folder folder;
  save(AdamW{}, folder.path(), biases(Lion{}));
  on_loading(AdamW{}, biases(Sgd{.momentum = 0.9}), [&](Net& net, Engine& engine) {
    const std::string told = thrown_by([&] { engine.load(folder.path()); });
    EXPECT_TRUE(says(told, {"is of lion (exp_avg), and not of momentum (momentum_buffer): first.bias, second.bias"}));
    EXPECT_EQ(told.find("first.weight"), std::string::npos) << told;
    engine.load(folder.path(), {.allow_new_optimizer = true});
    const StateScalars scalars = engine.state().scalars();
    EXPECT_EQ(scalars.updates.at("first.weight"), 3);
    EXPECT_EQ(scalars.updates.at("first.bias"), 0);
    EXPECT_EQ(scalars.optimizers.at("first.weight"), "adamw");
    EXPECT_EQ(scalars.optimizers.at("first.bias"), "momentum");
    EXPECT_TRUE(stepped(net, engine).applied);
  });
}

// A checkpoint of before state said whose it is: its moments are numbered.
TEST(OtherOptimizers, TakeMomentsThatHaveNumbers) {
  const Folder folder;
  save(AdamW{}, folder.path());
  const std::string path = folder.path() + "/step-000003/manifest.json";
  Manifest manifest = manifest_of(read_text(posix_env(), path, 1 << 20), path);
  manifest.scalars.optimizers.clear();
  for (StoredTensor& stored : manifest.tensors)
    if (stored.tensor.key.kind == StateKind::moment)
      stored.tensor.key.part = stored.tensor.key.part == "exp_avg" ? "0" : "1";
  posix_env().remove(path);
  write_text(posix_env(), path, to_text(manifest));
  const Folder whole;
  save(AdamW{}, whole.path());
  std::vector<double> losses;
  for (const std::string& from : {folder.path(), whole.path()})
    on_loading(AdamW{}, {}, [&](Net& net, Engine& engine) {
      engine.load(from);
      stepped(net, engine);
      const double loss = stepped(net, engine).loss;
      static std::mutex mutex;
      const std::lock_guard lock(mutex);
      losses.push_back(loss);
    });
  EXPECT_EQ(losses, std::vector<double>(4, losses.front()));
  on_loading(Sgd{.momentum = 0.9}, {}, [&](Net&, Engine& engine) {
    EXPECT_TRUE(says(thrown_by([&] { engine.load(folder.path()); }), {"first.weight moment 1", "is not expected"}));
  });
}

}  // namespace zero::test::other_optimizers_test

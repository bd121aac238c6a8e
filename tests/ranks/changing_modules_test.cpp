// Programs that assign buffers anew, replace layers and add parameters while an engine has the module.
#include <torch/csrc/jit/api/module.h>
#include <torch/torch.h>

#include "folder.h"
#include "harness.h"
#include "zero/described_module.h"
#include "zero/error.h"

namespace zero::test::changing_modules_test {

struct Net : torch::nn::Module {
  at::Tensor loss(std::int64_t index) { return second(torch::tanh(first(numbers(index, {3, 6})))).square().mean(); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 6));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(6, 6));
};

StepReport stepped(Net& net, Engine& engine) {
  engine.backward(net.loss(engine.micro_batch()));
  return engine.step();
}

// A module of another language: its buffers are variables that its forward assigns.
struct Program {
  std::shared_ptr<Net> net = std::make_shared<Net>();
  std::map<std::string, at::Tensor> buffers;
  std::set<std::string> not_persistent;
};

class ProgramSource final : public DescribedSource {
 public:
  explicit ProgramSource(const std::shared_ptr<Program>& program) : program_(program) {}

  std::shared_ptr<DescribedModule> describe() const override {
    const auto program = program_.lock();
    if (!program) return nullptr;
    auto tree = std::make_shared<DescribedModule>(ModuleTraits{.type = "Net"});
    for (const auto& child : program->net->named_children()) tree->register_module(child.key(), child.value());
    for (const auto& [name, buffer] : program->buffers)
      tree->register_buffer(name, buffer, !program->not_persistent.contains(name));
    return tree;
  }
  bool parameters(std::vector<at::Tensor>& all) const override {
    const auto program = program_.lock();
    if (program)
      for (const at::Tensor& each : program->net->parameters()) all.push_back(each);
    return program != nullptr;
  }

 private:
  std::weak_ptr<Program> program_;
};

std::shared_ptr<Program> made() {
  auto program = std::make_shared<Program>();
  initialise(*program->net, kSeed);
  program->buffers = {{"running", at::zeros({3})}, {"table", at::arange(4, at::kFloat)}};
  return program;
}

Engine engine_of(const std::shared_ptr<Program>& program, const World& world, const Plan& plan) {
  const auto source = std::make_shared<ProgramSource>(program);
  const auto tree = source->describe();
  tree->made_of(source);
  return {*tree, world, plan, AdamW{}};
}

TEST(ChangingModules, AreSavedAndLoadedWithTheBuffersThatTheyHaveThen) {
  const Folder folder;
  run_ranks(2, [&](const World& world) {
    const auto program = made();
    Engine engine = engine_of(program, world, Plan::zero3());
    stepped(*program->net, engine);
    program->buffers["running"] = at::full({3}, 7.0);
    engine.save(folder.path());
    program->buffers["running"] = at::full({3}, 8.0);
    const at::Tensor now = program->buffers["running"];
    engine.load(folder.path());
    EXPECT_TRUE(at::equal(now, at::full({3}, 7.0))) << "in the tensor that is there";
    EXPECT_TRUE(program->buffers["running"].is_same(now));
    const auto other = made();
    Engine anew = engine_of(other, world, Plan::zero2());
    {
      const c10::InferenceMode evaluating;
      other->buffers["running"] = at::zeros({3});
    }
    anew.load(folder.path());
    EXPECT_TRUE(at::equal(other->buffers["running"], at::full({3}, 7.0)));
  });
}

// As PyTorch's load_state_dict() copies.
TEST(ChangingModules, TakeBuffersOfAnotherType) {
  const Folder folder;
  run_ranks(2, [&](const World& world) {
    const auto program = made();
    Engine engine = engine_of(program, world, Plan::zero3());
    stepped(*program->net, engine);
    program->buffers["running"] = at::full({3}, 1.5, at::kBFloat16);
    program->buffers["table"] = at::arange(4, at::kFloat)._neg_view();  // whose memory has other values
    engine.save(folder.path());
    const auto other = made();
    Engine anew = engine_of(other, world, Plan::zero2());
    anew.load(folder.path());
    EXPECT_TRUE(at::equal(other->buffers["running"], at::full({3}, 1.5)));
    EXPECT_TRUE(at::equal(other->buffers["table"], -at::arange(4, at::kFloat)));
  });
}

TEST(ChangingModules, NameBuffersThatStateCannotTell) {
  const Folder folder;
  run_ranks(
      2,
      [&](const World& world) {
        const auto program = made();
        Engine engine = engine_of(program, world, Plan::zero3());
        stepped(*program->net, engine);
        program->buffers["running"] = program->net->first->weight.detach()[0];
        EXPECT_TRUE(says(thrown_by([&] { engine.save(folder.path()); }), {"buffer 'running'", "clone()"}));
        program->buffers["running"] = at::zeros({3 + world.rank()});
        EXPECT_TRUE(says(thrown_by([&] { engine.save(folder.path()); }),
                         {"other buffers", "running buffer, fp32 [3]", "running buffer, fp32 [4]", "not persistent"}));
        program->not_persistent = {"running"};
        EXPECT_NO_THROW(engine.save(folder.path()));
      },
      kToDisagree);
}

// Neither saved nor loaded nor compared; rank 0's win when an engine is built, as all buffers' do.
TEST(ChangingModules, KeepBuffersThatAreNotPersistent) {
  const Folder with, without;
  run_ranks(2, [&](const World& world) {
    const auto program = made();
    Engine engine = engine_of(program, world, Plan::zero3());
    stepped(*program->net, engine);
    engine.save(with.path());
    program->not_persistent = {"table"};
    engine.save(without.path());
    const EngineState state = engine.state();
    for (const StateTensor& each : state.tensors()) EXPECT_NE(each.key.name, "table");
  });
  for (const Folder* folder : {&with, &without})
    for (const bool weights_only : {false, true})
      run_ranks(2, [&](const World& world) {
        const auto program = made();
        program->not_persistent = {"table"};
        program->buffers["table"] = at::full({9}, 5.0 + world.rank());
        Engine engine = engine_of(program, world, Plan::ddp());
        EXPECT_TRUE(at::equal(program->buffers["table"], at::full({9}, 5.0)));
        engine.load(folder->path(), {.weights_only = weights_only});
        EXPECT_TRUE(at::equal(program->buffers["table"], at::full({9}, 5.0)));
      });
  run_ranks(2, [&](const World& world) {
    const auto program = made();
    Engine engine = engine_of(program, world, Plan::ddp());
    EXPECT_TRUE(says(thrown_by([&] { engine.load(without.path()); }), {"table buffer, fp32 [4], is missing"}));
  });
}

// One tensor, under a name that is not saved and one that is.
TEST(ChangingModules, SaveABufferThatIsPersistentUnderOneOfItsNames) {
  const auto program = made();
  program->buffers["again"] = program->buffers["table"];
  program->not_persistent = {"again"};
  Engine engine = engine_of(program, World(), Plan::ddp());
  std::vector<std::string> buffers;
  const EngineState state = engine.state();
  for (const StateTensor& each : state.tensors())
    if (each.key.kind == StateKind::buffer) buffers.push_back(each.key.name);
  EXPECT_EQ(buffers, (std::vector<std::string>{"table", "running"}));
}

TEST(ChangingModules, OfTorchScriptAssignBuffersInForward) {
  const auto scripted = [] {
    torch::jit::Module net("Net");
    net.register_parameter("weight", numbers(1, {3, 6}).requires_grad_(), /*is_buffer=*/false);
    net.register_buffer("running", at::zeros({6}));
    net.define(
        "def forward(self, x):\n  self.running = 0.5 * self.running + 0.5 * x.mean(0)\n"
        "  return torch.linear(x, self.weight)\n");
    return net;
  };
  const Folder folder;
  run_ranks(2, [&](const World& world) {
    torch::jit::Module net = scripted();
    Engine engine(net, world, Plan::zero3(), AdamW{});
    const auto train = [&] {
      engine.backward(net.forward({numbers(engine.micro_batch(), {4, 6})}).toTensor().square().mean());
      engine.step();
    };
    train();
    engine.save(folder.path());
    const at::Tensor saved = net.attr("running").toTensor().clone();
    train();
    EXPECT_FALSE(at::equal(net.attr("running").toTensor(), saved));
    engine.load(folder.path());
    torch::jit::Module other = scripted();
    Engine anew(other, world, Plan::zero2(), AdamW{});
    anew.load(folder.path());
    EXPECT_TRUE(at::equal(net.attr("running").toTensor(), other.attr("running").toTensor()));
    EXPECT_EQ(at::equal(other.attr("running").toTensor(), saved), world.rank() == 0) << "rank 0's";
  });
}

// What has to be said of a change of the module, at the next step and where state is told or taken over.
std::string told_of(const std::function<void(const std::shared_ptr<Net>& net)>& change, const Options& options = {}) {
  std::string told;
  run_ranks(2, [&](const World& world) {
    const auto net = std::make_shared<Net>();
    initialise(*net, kSeed);
    Engine engine(*net, world, Plan::zero3(), AdamW{}, options);
    EXPECT_TRUE(stepped(*net, engine).applied);
    change(net);
    const std::string text = thrown_by([&] { engine.step(); });
    EXPECT_EQ(thrown_by([&] { engine.state(); }), text);
    EXPECT_TRUE(!text.empty() || stepped(*net, engine).applied);
    if (world.rank() == 0) told = text;
  });
  return told;
}

TEST(ChangingModules, AreRefusedByNameWhereALayerIsReplaced) {
  const std::string told =
      told_of([](const auto& net) { net->second = net->replace_module("second", torch::nn::Linear(6, 6)); });
  EXPECT_TRUE(says(told, {"parameter 'second.weight' of the model is no longer the one that the engine trains",
                          "'second.bias'", "build a new engine"}));
  EXPECT_EQ(told.find("first"), std::string::npos) << told;
}

TEST(ChangingModules, AreRefusedByNameWhereALayerIsRemoved) {
  EXPECT_TRUE(says(told_of([](const auto& net) { net->unregister_module("second"); }),
                   {"parameter 'second.weight', which the engine trains, is no longer in the model"}));
}

TEST(ChangingModules, AreRefusedByNameWhereAParameterIsAdded) {
  const auto add = [](const auto& net) { net->second->register_parameter("extra", at::ones({2})); };
  EXPECT_TRUE(says(told_of(add), {"parameter 'second.extra' was put into the model after the engine was built"}));
  Options options;
  options.ignored = [](const ParameterInfo& info) { return info.name == "second.extra"; };
  EXPECT_EQ(told_of(add, options), "");
}

// The same parameters under more names, other buffers, and what is not trained.
TEST(ChangingModules, GoOnWhereWhatIsTrainedStays) {
  EXPECT_EQ(told_of([](const auto& net) {
              net->register_module("again", net->first);
              net->register_buffer("later", at::ones({2}));
              net->register_parameter("count", at::ones({1}, at::kLong), /*requires_grad=*/false);
              net->eval();
            }),
            "");
}

// An engine does not keep a module, and goes on with the tensors that it had.
TEST(ChangingModules, MayEndBeforeTheirEngine) {
  auto net = std::make_shared<Net>();
  net->register_buffer("seen", at::ones({2}));
  Engine engine(*net, World(), Plan::ddp(), AdamW{});
  const std::weak_ptr<Net> there = net;
  stepped(*net, engine);
  net.reset();
  EXPECT_TRUE(there.expired());
  const EngineState state = engine.state();
  EXPECT_EQ(state.tensors().back().key.name, "seen");
  EXPECT_NO_THROW(engine.step());
}

// One that nobody shares: a local variable, whose children are looked at.
TEST(ChangingModules, MayBeLocalVariables) {
  Net net;
  initialise(net, kSeed);
  Engine engine(net, World(), Plan::zero3(), AdamW{});
  EXPECT_TRUE(stepped(net, engine).applied);
  net.first->register_parameter("extra", at::ones({2}));
  EXPECT_TRUE(says(thrown_by([&] { engine.step(); }), {"first.extra"}));
}

}  // namespace zero::test::changing_modules_test

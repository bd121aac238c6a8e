// The programs of docs/migrating.md that name the class of their optimizer, or build it anew, each twice: for plain
// LibTorch, and with the lines changed that its diff shows. unit/documented_code_test holds the document against this.
#include "familiar_programs.h"
#include "folder.h"
#include "zero/error.h"

namespace zero::test::familiar_types_test {

// As a header has it, and a source.
class Fitter {
 public:
  Fitter(Regressor net, torch::optim::Adam& optimizer);
  void epoch(const Batches& data);

 private:
  Regressor net_;
  torch::optim::Adam& optimizer_;
};

Fitter::Fitter(Regressor net, torch::optim::Adam& optimizer) : net_(std::move(net)), optimizer_(optimizer) {}

void Fitter::epoch(const Batches& data) {
  for (auto& group : optimizer_.param_groups()) {
    auto& options = static_cast<torch::optim::AdamOptions&>(group.options());
    options.lr(options.lr() * 0.5);
  }
  for (const auto& [x, y] : data) {
    optimizer_.zero_grad();
    torch::mse_loss(net_->forward(x), y).backward();
    optimizer_.step();
  }
}

void fit(Regressor& net, const Batches& data) {
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  Fitter fitter(net, optimizer);
  for (int epoch = 0; epoch < 2; ++epoch) fitter.epoch(data);
}

void fit(Regressor& net, const Batches& data, const zero::World& world, const zero::Plan& plan) {
  zero::Engine optimizer(*net, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  Fitter fitter(net, optimizer);
  for (int epoch = 0; epoch < 2; ++epoch) fitter.epoch(data);
  optimizer.release();
}

TEST(FamiliarTypes, AReferenceInAHeader) {
  expect_loop_as_plain([](auto&&... of) { fit(of...); });
}

struct PolicyImpl : torch::nn::Module {
  torch::Tensor log_policy(const torch::Tensor& states) { return torch::log_softmax(layers->forward(states), 1); }
  torch::nn::Sequential layers = register_module(
      "layers", torch::nn::Sequential(torch::nn::Linear(6, 40), torch::nn::Tanh(), torch::nn::Linear(40, 4)));
};
TORCH_MODULE(Policy);

torch::Tensor policy_loss(Policy& policy, const Batch& taken) {
  const torch::Tensor actions = taken.second.argmax(1, /*keepdim=*/true);
  const torch::Tensor now = policy->log_policy(taken.first).gather(1, actions);
  const torch::Tensor ratio = (now - now.detach() * 0.9).exp(), gain = taken.second.amax(1, /*keepdim=*/true);
  return -torch::minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean();
}

// Any optimizer that has these options.
template <class Optimizer, class Options>
void anneal(Optimizer* optimizer, double factor) {
  for (auto& group : optimizer->param_groups()) static_cast<Options&>(group.options()).lr() *= factor;
}

void improve(Policy& policy, torch::optim::Adam* optimizer, const Batches& taken) {
  for (const Batch& each : taken) {
    optimizer->zero_grad();
    policy_loss(policy, each).backward();
    optimizer->step();
  }
  anneal<torch::optim::Adam, torch::optim::AdamOptions>(optimizer, 0.5);
}

void play(Policy& policy, const Batches& taken) {
  torch::optim::Adam optimizer(policy->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  for (int round = 0; round < 2; ++round) improve(policy, &optimizer, taken);
}

void play(Policy& policy, const Batches& taken, const zero::World& world, const zero::Plan& plan) {
  zero::Engine engine(*policy, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  torch::optim::Adam& optimizer = engine;
  for (int round = 0; round < 2; ++round) improve(policy, &optimizer, taken);
  engine.release();
}

TEST(FamiliarTypes, APointer) {
  expect_loop_as_plain<Policy>([](auto&&... of) { play(of...); }, 4);
}

using PolicyOptimizer = std::shared_ptr<torch::optim::Adam>;

struct Learner {
  Policy policy;
  PolicyOptimizer optimizer;

  void learn(const Batches& taken) { improve(policy, optimizer.get(), taken); }
};

void learn(Policy& policy, const Batches& taken) {
  const auto optimizer =
      std::make_shared<torch::optim::Adam>(policy->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  Learner learner{policy, optimizer};
  learner.learn(taken);
}

void learn(Policy& policy, const Batches& taken, const zero::World& world, const zero::Plan& plan) {
  const auto engine = std::make_shared<zero::Engine>(*policy, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  const PolicyOptimizer optimizer(engine, &engine->optimizer<torch::optim::Adam>());
  Learner learner{policy, optimizer};
  learner.learn(taken);
  engine->release();
}

TEST(FamiliarTypes, ASharedPointerByAnAlias) {
  expect_loop_as_plain<Policy>([](auto&&... of) { learn(of...); }, 4);
}

// An engine as a member by value: it has what a loop calls.
template <class Optimizer>
void loop_by(Optimizer& optimizer, Regressor& net, const Batches& data) {
  for (const auto& [x, y] : data) {
    optimizer.zero_grad();
    const torch::Tensor loss = optimizer.step([&] {
      const torch::Tensor each = torch::mse_loss(net->forward(x), y);
      each.backward();
      return each;
    });
    EXPECT_TRUE(loss.defined());
    for (auto& group : optimizer.param_groups()) group.options().set_lr(group.options().get_lr() * 0.9);
  }
}

TEST(FamiliarTypes, AMemberOrATemplate) {
  expect_as_plain([](int data_of, const auto&... engine) {
    auto net = begun<Regressor>();
    if constexpr (sizeof...(engine) == 0) {
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      loop_by(optimizer, net, batches(data_of, 6, 3));
    } else {
      Engine optimizer(*net, engine..., Sgd{.lr = 0.1, .momentum = 0.9});
      loop_by(optimizer, net, batches(data_of, 6, 3));
      optimizer.release();
    }
    return left_by({{"", net.get()}});
  });
}

struct Translators {
  torch::nn::Sequential ab = layers(3), ba = layers(3), of_a = layers(1), of_b = layers(1);
  static torch::nn::Sequential layers(std::int64_t out) {
    return torch::nn::Sequential(torch::nn::Linear(3, 40), torch::nn::Tanh(), torch::nn::Linear(40, out));
  }
};

torch::Tensor told_apart(torch::nn::Sequential& critic, const torch::Tensor& x, double label) {
  const torch::Tensor logits = critic->forward(x);
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
}

void translate(Translators& net, const Batches& data) {
  torch::optim::Adam for_ab(net.ab->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  torch::optim::Adam for_ba(net.ba->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  torch::optim::Adam for_critic_of_a(net.of_a->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  torch::optim::Adam for_critic_of_b(net.of_b->parameters(), torch::optim::AdamOptions(1e-2).eps(1e-4));
  for (const auto& [a, b] : data) {
    for_ab.zero_grad();
    for_ba.zero_grad();
    const torch::Tensor as_b = net.ab->forward(a), as_a = net.ba->forward(b);
    const torch::Tensor cycle = torch::l1_loss(net.ba->forward(as_b), a) + torch::l1_loss(net.ab->forward(as_a), b);
    (10 * cycle + told_apart(net.of_a, as_a, 1) + told_apart(net.of_b, as_b, 1)).backward();
    for_ab.step();
    for_ba.step();
    for_critic_of_a.zero_grad();
    (told_apart(net.of_a, a, 1) + told_apart(net.of_a, as_a.detach(), 0)).backward();
    for_critic_of_a.step();
    for_critic_of_b.zero_grad();
    (told_apart(net.of_b, b, 1) + told_apart(net.of_b, as_b.detach(), 0)).backward();
    for_critic_of_b.step();
  }
}

void translate(Translators& net, const Batches& data, const zero::World& world, const zero::Plan& plan) {
  zero::Engine for_ab(*net.ab, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  zero::Engine for_ba(*net.ba, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  zero::Engine for_critic_of_a(*net.of_a, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  zero::Engine for_critic_of_b(*net.of_b, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  for (const auto& [a, b] : data) {
    for_ab.zero_grad();
    for_ba.zero_grad();
    const torch::Tensor as_b = net.ab->forward(a), as_a = net.ba->forward(b);
    const torch::Tensor cycle = torch::l1_loss(net.ba->forward(as_b), a) + torch::l1_loss(net.ab->forward(as_a), b);
    (10 * cycle + told_apart(net.of_a, as_a, 1) + told_apart(net.of_b, as_b, 1)).backward();
    for_ab.step();
    for_ba.step();
    for_critic_of_a.zero_grad();
    (told_apart(net.of_a, a, 1) + told_apart(net.of_a, as_a.detach(), 0)).backward();
    for_critic_of_a.step();
    for_critic_of_b.zero_grad();
    (told_apart(net.of_b, b, 1) + told_apart(net.of_b, as_b.detach(), 0)).backward();
    for_critic_of_b.step();
  }
  for (zero::Engine* each : {&for_ab, &for_ba, &for_critic_of_a, &for_critic_of_b}) each->release();
}

TEST(FamiliarTypes, FourOptimizersOfACycleGan) {
  expect_as_plain([](int data_of, const auto&... engine) {
    Translators net;
    const std::map<std::string, torch::nn::Module*> all{
        {"ab.", net.ab.get()}, {"ba.", net.ba.get()}, {"of_a.", net.of_a.get()}, {"of_b.", net.of_b.get()}};
    std::int64_t seed = kSeed;
    for (const auto& [name, network] : all) initialise(*network, seed += 100);
    translate(net, batches(data_of, 3, 3, 2), engine...);
    return left_by(all);
  });
}

std::vector<torch::Tensor> joined(std::vector<torch::Tensor> all, const std::vector<torch::Tensor>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void match(Generator& from, Regressor& to, const Batches& data) {
  const std::vector<torch::Tensor> both = joined(from->parameters(), to->parameters());
  torch::optim::Adam optimizer(both, torch::optim::AdamOptions(1e-2).eps(1e-4));
  for (const auto& [noise, x] : data) {
    optimizer.zero_grad();
    torch::mse_loss(from->forward(noise), to->forward(x)).backward();
    optimizer.step();
  }
}

void match(Generator& from, Regressor& to, const Batches& data, const zero::World& world, const zero::Plan& plan) {
  torch::nn::ModuleList both(from, to);
  zero::Engine optimizer(*both, world, plan, zero::Adam{.lr = 1e-2, .eps = 1e-4});
  for (const auto& [noise, x] : data) {
    optimizer.zero_grad();
    torch::mse_loss(from->forward(noise), to->forward(x)).backward();
    optimizer.step();
  }
  optimizer.release();
}

TEST(FamiliarTypes, OneOptimizerOverSeveralModules) {
  expect_as_plain([](int data_of, const auto&... engine) {
    auto from = begun<Generator>();
    auto to = begun<Regressor>(kSeed + 100);
    match(from, to, batches(data_of, 4, 6), engine...);
    return left_by({{"from.", from.get()}, {"to.", to.get()}});
  });
}

void restart(Regressor& net, const Batches& data) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2).eps(1e-4));
    for (const auto& [x, y] : data) {
      optimizer.zero_grad();
      torch::mse_loss(net->forward(x), y).backward();
      optimizer.step();
    }
  }
}

void restart(Regressor& net, const Batches& data, const zero::World& world, const zero::Plan& plan) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    zero::Engine optimizer(*net, world, plan, zero::AdamW{.lr = 1e-2, .eps = 1e-4});
    for (const auto& [x, y] : data) {
      optimizer.zero_grad();
      torch::mse_loss(net->forward(x), y).backward();
      optimizer.step();
    }
    optimizer.release();
  }
}

TEST(FamiliarTypes, AnOptimizerForEachEpoch) {
  expect_loop_as_plain([](auto&&... of) { restart(of...); }, 3, 2);
}

// A module's archive is written and read in a scope; an optimizer's is refused, and says what is for both.
TEST(FamiliarTypes, Archives) {
  for (const Plan& plan : all_plans())
    run_ranks(2, [&](const World& world) {
      const Folder folder;
      auto net = begun<Regressor>(), plain = begun<Regressor>(kSeed + 1), again = begun<Regressor>(kSeed + 2);
      const std::string path = folder.path() + "/net.pt";
      Engine optimizer(*net, world, plan, Adam{.lr = 1e-2}), other(*again, world, plan, Adam{});
      {
        const auto whole = gather(net->parameters());
        torch::serialize::OutputArchive archive;
        net->save(archive);
        archive.save_to(path);
      }
      torch::load(plain, path);
      {
        const auto whole = gather(again->parameters());
        torch::serialize::InputArchive archive;
        archive.load_from(path);
        again->load(archive);
      }
      torch::serialize::OutputArchive archive;
      EXPECT_TRUE(
          says(thrown_by([&] { optimizer.optimizer<torch::optim::Adam>().save(archive); }), {"engine.save(folder)"}));
      optimizer.release();
      other.release();
      EXPECT_EQ(difference(left_by({{"", net.get()}}), left_by({{"", plain.get()}})), "");
      EXPECT_EQ(difference(left_by({{"", net.get()}}), left_by({{"", again.get()}})), "");
    });
}

}  // namespace zero::test::familiar_types_test

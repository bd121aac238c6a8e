// Unmodified programs on the simulated accelerator, and on the CPU: the same bits.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <sstream>
#include <thread>

#include "device/fixture.h"

namespace zero::test::accelerator::training_test {

namespace nn = torch::nn;

struct Program {
  std::shared_ptr<nn::Module> module;
  std::function<at::Tensor(c10::Device)> loss;
};
using MakeProgram = Program (*)();

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> tensors;
};

class Autocast {
 public:
  Autocast(c10::DeviceType type, bool on) : type_(type), on_(on) {
    if (!on_) return;
    at::autocast::set_autocast_dtype(type_, at::kBFloat16);
    at::autocast::set_autocast_enabled(type_, true);
  }
  ~Autocast() {
    if (!on_) return;
    at::autocast::set_autocast_enabled(type_, false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType type_;
  bool on_;
};

Trained train(MakeProgram make, c10::Device where, bool autocast = false) {
  torch::manual_seed(1);
  const Program program = make();
  program.module->to(where);
  torch::optim::AdamW optimizer(program.module->parameters(), torch::optim::AdamWOptions(0.01));
  torch::manual_seed(2);
  Trained trained;
  for (int step = 0; step < 4; ++step) {
    at::Tensor loss;
    {
      const Autocast on(where.type(), autocast);
      loss = program.loss(where);
    }
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    trained.losses.push_back(loss.item<double>());
  }
  for (const at::Tensor& each : program.module->parameters()) trained.tensors.push_back(each.detach().cpu());
  for (const at::Tensor& each : program.module->buffers()) trained.tensors.push_back(each.cpu());
  return trained;
}

void expect_equal(const Trained& device_run, const Trained& host_run) {
  EXPECT_EQ(device_run.losses, host_run.losses);
  EXPECT_LT(host_run.losses.back(), host_run.losses.front());
  ASSERT_EQ(device_run.tensors.size(), host_run.tensors.size());
  for (std::size_t i = 0; i < host_run.tensors.size(); ++i)
    EXPECT_TRUE(at::equal(device_run.tensors[i], host_run.tensors[i])) << i;
}

Program perceptron() {
  nn::Sequential net(nn::Linear(6, 33), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({33})), nn::Linear(33, 3));
  const at::Tensor x = torch::randn({16, 6}), y = torch::randint(3, {16});
  return {net.ptr(), [=](c10::Device where) mutable {
            return nn::functional::cross_entropy(net->forward(x.to(where)), y.to(where));
          }};
}

Program convolutions() {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8), nn::ReLU(),
                     nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(8, 4, 3).stride(2).bias(false)),
                     nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(4, 2));
  const at::Tensor x = torch::randn({5, 3, 12, 12}), y = torch::randn({5, 2});
  return {net.ptr(),
          [=](c10::Device where) mutable { return nn::functional::mse_loss(net->forward(x.to(where)), y.to(where)); }};
}

Program transformer() {
  auto module = std::make_shared<nn::Module>();
  nn::Embedding embedding = module->register_module("embedding", nn::Embedding(20, 16));
  nn::TransformerEncoderLayer layer = module->register_module(
      "layer",
      nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(24).dropout(0.25)));
  const at::Tensor tokens = torch::randint(20, {7, 3});
  return {module, [=](c10::Device where) mutable {
            return layer->forward(embedding->forward(tokens.to(where))).square().sum();
          }};
}

template <class Net>
Program recurrent(Net net) {
  auto module = std::make_shared<nn::Module>();
  nn::Embedding embedding = module->register_module("embedding", nn::Embedding(20, 8));
  module->register_module("net", net);
  const at::Tensor tokens = torch::randint(20, {7, 3});
  return {module, [=](c10::Device where) mutable {
            return std::get<0>(net->forward(embedding->forward(tokens.to(where)))).sub(0.5).square().mean();
          }};
}

Program lstm() {
  return recurrent(nn::LSTM(nn::LSTMOptions(8, 12).num_layers(2).bidirectional(true).dropout(0.3)));
}

Program gru() {
  return recurrent(nn::GRU(nn::GRUOptions(8, 12)));
}

class Training : public OnTheDevice, public ::testing::WithParamInterface<Mode> {
 protected:
  void SetUp() override {
    OnTheDevice::SetUp();
    set_mode(GetParam());
    set_race_faults(true);
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, Training, ::testing::Values(Mode::lazy, Mode::eager));

TEST_P(Training, Perceptron) {
  expect_equal(train(perceptron, device(0)), train(perceptron, at::kCPU));
}

TEST_P(Training, Convolutions) {
  expect_equal(train(convolutions, device(1)), train(convolutions, at::kCPU));
}

TEST_P(Training, TransformerWithDropout) {
  expect_equal(train(transformer, device(0)), train(transformer, at::kCPU));
}

// As LibTorch computes them itself.
class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(true); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;
};

TEST_P(Training, Recurrent) {
  const WithoutOneDnn off;
  for (const MakeProgram make : {lstm, gru}) {
    SCOPED_TRACE(make == lstm ? "LSTM" : "GRU");
    expect_equal(train(make, device(0)), train(make, at::kCPU));
  }
}

TEST_P(Training, RecurrentCells) {
  const auto gradient = [](c10::Device where) {
    torch::manual_seed(1);
    nn::LSTMCell lstm_cell(4, 6);
    nn::GRUCell gru_cell(6, 5);
    const at::Tensor x = torch::randn({3, 4}), hidden = torch::randn({3, 6});
    lstm_cell->to(where);
    gru_cell->to(where);
    const at::Tensor state = std::get<1>(lstm_cell->forward(x.to(where), {{hidden.to(where), hidden.to(where)}}));
    gru_cell->forward(state).sum().backward();
    return lstm_cell->weight_ih.grad().cpu();
  };
  EXPECT_TRUE(at::allclose(gradient(device(0)), gradient(at::kCPU)));
}

TEST_P(Training, Autocast) {
  for (const MakeProgram make : {perceptron, convolutions, transformer})
    expect_equal(train(make, device(0), /*autocast=*/true), train(make, at::kCPU, /*autocast=*/true));
}

TEST_P(Training, OnAStreamOfItsOwn) {
  const c10::StreamGuard on(c10::impl::VirtualGuardImpl(kType).getNewStream(device(0)));
  expect_equal(train(perceptron, device(0)), train(perceptron, at::kCPU));
}

TEST_P(Training, BackwardRunsOnAThreadOfTheDevice) {
  const at::Tensor x = torch::ones({3}, device(1)).requires_grad_();
  std::thread::id thread;
  const at::Tensor y = x * 2;
  y.register_hook([&](const at::Tensor&) { thread = std::this_thread::get_id(); });
  y.sum().backward();
  EXPECT_NE(thread, std::this_thread::get_id());
  EXPECT_EQ(x.grad().cpu()[0].item<float>(), 2);
}

TEST_P(Training, ModulesMoveThereAndBack) {
  nn::Linear linear(3, 4);
  const at::Tensor before = linear->weight.detach().clone();
  linear->to(device(0));
  EXPECT_EQ(linear->weight.device(), device(0));
  EXPECT_TRUE(linear->weight.requires_grad());
  linear->to(at::kDouble);
  linear->to(device(1));
  linear->to(at::kCPU, at::kFloat);
  EXPECT_TRUE(at::equal(linear->weight, before));
}

TEST_P(Training, ModulesAreSavedAndLoaded) {
  nn::Linear saved(3, 4), loaded(3, 4), on_host(3, 4);
  saved->to(device(0));
  loaded->to(device(0));
  std::stringstream file, again;
  torch::save(saved, file);
  again << file.str();
  torch::load(loaded, file, device(0));
  torch::load(on_host, again, at::kCPU);
  EXPECT_EQ(loaded->weight.device(), device(0));
  EXPECT_TRUE(at::equal(loaded->weight.cpu(), saved->weight.cpu()));
  EXPECT_TRUE(at::equal(on_host->weight, saved->weight.cpu()));
}

}  // namespace zero::test::accelerator::training_test

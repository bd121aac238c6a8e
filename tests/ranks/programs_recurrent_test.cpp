// Recurrent networks that carry their state from step to step, and loops whose length is the data's.
#include <torch/torch.h>

#include "programs.h"

namespace zero::test::programs_recurrent_test {

namespace F = torch::nn::functional;
using torch::nn::Linear;

constexpr std::int64_t kBatch = 3, kChunk = 5, kVocabulary = 11;
const Options kClipped{.clip = 0.25};

// Truncated backpropagation through time: each chunk begins with the state that the one before ended with.
struct CharacterModelImpl : torch::nn::Module {
  using State = std::tuple<at::Tensor, at::Tensor>;
  std::pair<at::Tensor, State> forward(const at::Tensor& ids, const State& state) {
    auto [output, next] = lstm(embed(ids), state);
    return {head(output), next};
  }
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(kVocabulary, 12));
  torch::nn::LSTM lstm =
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(12, 20).num_layers(2).batch_first(true)));
  Linear head = register_module("head", Linear(20, kVocabulary));
};
TORCH_MODULE(CharacterModel);

struct Truncated : Program {
  explicit Truncated(Run& run) : trainer(run.trainer(*model, kAdamW, kClipped)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int lane, std::int64_t index) {
      const at::Tensor ids = tokens(index, {kBatch, kChunk + 1}, kVocabulary);
      if (!states.contains(lane)) states[lane] = {at::zeros({2, kBatch, 20}), at::zeros({2, kBatch, 20})};
      auto& state = states.at(lane);
      const auto [logits, next] = model->forward(ids.slice(1, 0, kChunk), state);
      trainer.backward(F::cross_entropy(logits.flatten(0, 1).to(at::kFloat), ids.slice(1, 1).flatten()));
      state = {std::get<0>(next).detach(), std::get<1>(next).detach()};
    });
    trainer.step();
  }
  CharacterModel model;
  Trainer& trainer;
  std::map<int, CharacterModelImpl::State> states;
};

// The same over measurements in fp32, in both directions.
struct ForecastImpl : torch::nn::Module {
  at::Tensor loss(std::int64_t index, CharacterModelImpl::State& state) {
    const at::Tensor x = numbers(index, {kBatch, kChunk, 7});
    auto [output, next] = lstm(x, state);
    state = {std::get<0>(next).detach().to(at::kFloat), std::get<1>(next).detach().to(at::kFloat)};
    return F::mse_loss(head(output).to(at::kFloat), x.roll(-1, 1));
  }
  torch::nn::LSTM lstm =
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(7, 16).bidirectional(true).batch_first(true)));
  Linear head = register_module("head", Linear(32, 7));
};
TORCH_MODULE(Forecast);

struct Forecasts : Program {
  explicit Forecasts(Run& run) : trainer(run.trainer(*model, kSgdMomentum, kClipped)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int lane, std::int64_t index) {
      if (!states.contains(lane)) states[lane] = {at::zeros({2, kBatch, 16}), at::zeros({2, kBatch, 16})};
      trainer.backward(model->loss(index, states.at(lane)));
    });
    trainer.step();
  }
  Forecast model;
  Trainer& trainer;
  std::map<int, CharacterModelImpl::State> states;
};

// Cells in a loop of the program's, with a length that differs between micro-batches, and so between ranks.
struct TaggerImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, at::Tensor& hidden) {
    std::vector<at::Tensor> outputs;
    for (std::int64_t t = 0; t < x.size(0); ++t) {
      hidden = cell(x[t], hidden).to(at::kFloat);
      outputs.push_back(tag(hidden));
    }
    return torch::stack(outputs);
  }
  torch::nn::GRUCell cell = register_module("cell", torch::nn::GRUCell(9, 24));
  Linear tag = register_module("tag", Linear(24, 4));
};
TORCH_MODULE(Tagger);

struct OfAnyLength : Program {
  explicit OfAnyLength(Run& run) : trainer(run.trainer(*model, kSgdMomentum, kClipped)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int lane, std::int64_t index) {
      const std::int64_t length = 2 + index % 3;
      if (!states.contains(lane)) states[lane] = at::zeros({kBatch, 24});
      at::Tensor hidden = states.at(lane).detach();
      const at::Tensor logits = model->forward(numbers(index, {length, kBatch, 9}), hidden);
      states[lane] = hidden;
      trainer.backward(F::cross_entropy(logits.flatten(0, 1).to(at::kFloat), tokens(index, {length * kBatch}, 4)));
    });
    trainer.step();
  }
  Tagger model;
  Trainer& trainer;
  std::map<int, at::Tensor> states;
};

// A chain of losses: each chunk's own backward, one step for all of them.
struct ChunksBeforeAStep : Program {
  explicit ChunksBeforeAStep(Run& run) : trainer(run.trainer(*model, kSgdMomentum, kClipped)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      at::Tensor hidden = at::zeros({kBatch, 24});
      for (int chunk = 0; chunk < 3; ++chunk) {
        const at::Tensor logits = model->forward(numbers(3 * index + chunk, {2, kBatch, 9}), hidden);
        trainer.backward(
            F::cross_entropy(logits.flatten(0, 1).to(at::kFloat), tokens(3 * index + chunk, {2 * kBatch}, 4)));
        hidden = hidden.detach();
      }
    });
    trainer.step();
  }
  Tagger model;
  Trainer& trainer;
};

// Encoder and decoder of one module, the decoder fed with its own choices: as many uses of the same weights as words.
struct TranslatorImpl : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor source = tokens(index, {kChunk, kBatch}, kVocabulary);
    at::Tensor hidden = std::get<1>(encoder(embed(source)))[0].to(at::kFloat), total = at::zeros({});
    at::Tensor word = at::zeros({kBatch}, at::kLong);
    for (int t = 0; t < 3; ++t) {
      hidden = decoder(embed(word), hidden).to(at::kFloat);
      const at::Tensor logits = F::linear(project(hidden), embed->weight).to(at::kFloat);
      total = total + F::cross_entropy(logits, source[t]);
      word = index % 2 == 0 ? source[t] : logits.argmax(1);
    }
    return total / 3;
  }
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(kVocabulary, 14));
  torch::nn::GRU encoder = register_module("encoder", torch::nn::GRU(14, 22));
  torch::nn::GRUCell decoder = register_module("decoder", torch::nn::GRUCell(14, 22));
  Linear project = register_module("project", Linear(22, 14));
};
TORCH_MODULE(Translator);

struct Translation : Program {
  explicit Translation(Run& run) : trainer(run.trainer(*model, kAdamW, kClipped)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) { trainer.backward(model->loss(index)); });
    trainer.step();
  }
  Translator model;
  Trainer& trainer;
};

TEST(RecurrentPrograms, LstmWithCarriedStateAndClipping) {
  expect_as_plain<Truncated>();
  expect_same_on_one_rank<Truncated>();
}
TEST(RecurrentPrograms, LstmInBothDirectionsOverMeasurements) {
  expect_as_plain<Forecasts>();
}
TEST(RecurrentPrograms, CellsOverSequencesOfAnyLength) {
  expect_as_plain<OfAnyLength>();
  expect_same_on_one_rank<OfAnyLength>();
}
TEST(RecurrentPrograms, ABackwardForEachChunkBeforeAStep) {
  expect_as_plain<ChunksBeforeAStep>();
}
TEST(RecurrentPrograms, EncoderAndDecoderWithTiedWords) {
  expect_as_plain<Translation>();
}

}  // namespace zero::test::programs_recurrent_test

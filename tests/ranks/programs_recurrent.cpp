// Recurrent networks that carry their state from step to step, and loops whose length is the data's.
#include <torch/torch.h>

#include "programs.h"

namespace zero::test::programs_recurrent {

namespace F = torch::nn::functional;
using torch::nn::Linear;

constexpr std::int64_t kBatch = 3, kChunk = 5, kVocabulary = 11;
const Options kClipped{.clip = 0.25};

at::Tensor none_yet(at::IntArrayRef shape) {
  return at::zeros(shape, device_of_rank());
}

// Truncated backpropagation through time: each chunk begins with the state that the one before ended with.
template <class Model>
struct Truncated : Program {
  Truncated(Run& run, const Optimizer& optimizer) : trainer(run.trainer(model, optimizer, kClipped)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int lane, std::int64_t index) {
      auto& state = states.try_emplace(lane, Model::begin()).first->second;
      trainer.backward(model.loss(index, state));
    });
    trainer.step();
  }
  Model model;
  Trainer& trainer;
  std::map<int, typename Model::State> states;
};

template <class Model>
MakeProgram truncated(const Optimizer& optimizer) {
  return [=](Run& run) -> std::unique_ptr<Program> { return std::make_unique<Truncated<Model>>(run, optimizer); };
}

struct CharacterModel : torch::nn::Module {
  using State = std::tuple<at::Tensor, at::Tensor>;
  static State begin() { return {none_yet({2, kBatch, 20}), none_yet({2, kBatch, 20})}; }
  at::Tensor loss(std::int64_t index, State& state) {
    const at::Tensor ids = tokens(index, {kBatch, kChunk + 1}, kVocabulary);
    const auto [output, next] = lstm(embed(ids.slice(1, 0, kChunk)), state);
    state = {std::get<0>(next).detach(), std::get<1>(next).detach()};
    return F::cross_entropy(head(output).flatten(0, 1).to(at::kFloat), ids.slice(1, 1).flatten());
  }
  torch::nn::Embedding embed = register_module("embed", torch::nn::Embedding(kVocabulary, 12));
  torch::nn::LSTM lstm =
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(12, 20).num_layers(2).batch_first(true)));
  Linear head = register_module("head", Linear(20, kVocabulary));
};

// The same over measurements in fp32, in both directions.
struct Forecast : torch::nn::Module {
  using State = std::tuple<at::Tensor, at::Tensor>;
  static State begin() { return {none_yet({2, kBatch, 16}), none_yet({2, kBatch, 16})}; }
  at::Tensor loss(std::int64_t index, State& state) {
    const at::Tensor x = numbers(index, {kBatch, kChunk, 7});
    const auto [output, next] = lstm(x, state);
    state = {std::get<0>(next).detach().to(at::kFloat), std::get<1>(next).detach().to(at::kFloat)};
    return F::mse_loss(head(output).to(at::kFloat), x.roll(-1, 1));
  }
  torch::nn::LSTM lstm =
      register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(7, 16).bidirectional(true).batch_first(true)));
  Linear head = register_module("head", Linear(32, 7));
};

// Cells in a loop of the program's, with a length that differs between micro-batches, and so between ranks.
struct Tagger : torch::nn::Module {
  using State = at::Tensor;
  static State begin() { return none_yet({kBatch, 24}); }
  at::Tensor loss(std::int64_t index, State& state) {
    const std::int64_t length = 2 + index % 3;
    state = state.detach();
    const at::Tensor logits = forward(numbers(index, {length, kBatch, 9}), state);
    return F::cross_entropy(logits.flatten(0, 1).to(at::kFloat), tokens(index, {length * kBatch}, 4));
  }
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

// A chain of losses: each chunk's own backward, one step for all of them.
struct ChunksBeforeAStep : Program {
  explicit ChunksBeforeAStep(Run& run) : trainer(run.trainer(model, kSgdMomentum, kClipped)) {}
  void step(Run& run, int step) override {
    run.each(step, [&](int, std::int64_t index) {
      at::Tensor hidden = Tagger::begin();
      for (int chunk = 0; chunk < 3; ++chunk) {
        const at::Tensor logits = model.forward(numbers(3 * index + chunk, {2, kBatch, 9}), hidden);
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
struct Translator : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    const at::Tensor source = tokens(index, {kChunk, kBatch}, kVocabulary);
    at::Tensor hidden = std::get<1>(encoder(embed(source)))[0].to(at::kFloat), total = none_yet({});
    at::Tensor word = at::zeros({kBatch}, source.options());
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

std::vector<ProgramRow> rows() {
  return {{"LstmWithCarriedStateAndClipping", truncated<CharacterModel>(kAdamW)},
          {"LstmInBothDirectionsOverMeasurements", truncated<Forecast>(kSgdMomentum)},
          {"CellsOverSequencesOfAnyLength", truncated<Tagger>(kSgdMomentum)},
          {"ABackwardForEachChunkBeforeAStep", program<ChunksBeforeAStep>(), {.reproducible = false}},
          {"EncoderAndDecoderWithTiedWords", usual<Translator>(kAdamW, {}, kClipped)}};
}

}  // namespace zero::test::programs_recurrent

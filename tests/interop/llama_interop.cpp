// What transformers is compared with, see transformers_test.py.
//   llama_interop logits CONFIG WEIGHTS IDS OUT: logits of the token ids in IDS, int64, one sequence, as fp32
//   llama_interop train CONFIG RUN PRECISION: trains a few steps and saves a checkpoint to the folder RUN
#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "models/llama.h"
#include "zero/zero.h"

namespace {

std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

int logits(const std::string& config, const std::string& weights, const std::string& ids, const std::string& out) {
  const torch::NoGradGuard no_grad;
  models::Llama model(models::llama_from_file(config));
  zero::load_safetensors(*model, weights);
  std::string bytes = read_bytes(ids);
  const at::Tensor tokens = torch::from_blob(bytes.data(), {1, static_cast<std::int64_t>(bytes.size() / 8)}, at::kLong);
  const at::Tensor result = model->forward(tokens).contiguous();
  std::ofstream(out, std::ios::binary)
      .write(static_cast<const char*>(result.const_data_ptr()), static_cast<std::streamsize>(result.nbytes()));
  return 0;
}

int train(const std::string& config, const std::string& run, const std::string& precision) {
  torch::manual_seed(1);
  const zero::World world = zero::init();
  models::Llama model(models::llama_from_file(config));
  zero::Engine engine(*model, world, zero::Plan::zero3().precision(zero::precision_named(precision)),
                      zero::AdamW{.lr = 1e-2});
  const at::Tensor ids = torch::randint(model->config().vocab_size, {2, 17});
  for (int step = 0; step < 3; ++step) {
    engine.backward(model->loss(ids.slice(1, 0, 16), ids.slice(1, 1)));
    engine.step();
  }
  engine.save(run, {.user = R"({"step": 3, "model": )" + models::config_json(model->config()) + "}"});
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 5 && words[0] == "logits") return logits(words[1], words[2], words[3], words[4]);
  if (words.size() == 4 && words[0] == "train") return train(words[1], words[2], words[3]);
  std::cerr << "llama_interop logits CONFIG WEIGHTS IDS OUT | train CONFIG RUN PRECISION\n";
  return 2;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

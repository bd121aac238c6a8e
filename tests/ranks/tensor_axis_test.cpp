// Engines whose mesh has a tensor axis: modules as they are, each rank with its part.
#include <torch/torch.h>

#include "harness.h"

namespace zero::test::tensor_axis_test {

using at::Tensor;

// A block of a GPT as users write it: projections of their own, views by the number of heads, dropout, a residual.
struct GptBlockImpl : torch::nn::Module {
  static constexpr std::int64_t kSize = 16, kHeads = 4;

  explicit GptBlockImpl(double dropout)
      : before(register_module("before", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kSize})))),
        q(register_module("q", torch::nn::Linear(kSize, kSize))),
        k(register_module("k", torch::nn::Linear(kSize, kSize))),
        v(register_module("v", torch::nn::Linear(kSize, kSize))),
        o(register_module("o", torch::nn::Linear(kSize, kSize))),
        behind(register_module("behind", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kSize})))),
        up(register_module("up", torch::nn::Linear(kSize, 4 * kSize))),
        down(register_module("down", torch::nn::Linear(4 * kSize, kSize))),
        drop(register_module("drop", torch::nn::Dropout(dropout))) {}

  Tensor heads(const Tensor& x) { return x.view({x.size(0), x.size(1), kHeads, kSize / kHeads}).transpose(1, 2); }

  Tensor forward(const Tensor& x) {
    const Tensor y = before(x);
    const Tensor attended = at::scaled_dot_product_attention(heads(q(y)), heads(k(y)), heads(v(y)), {}, 0, true);
    const Tensor after = x + drop(o(attended.transpose(1, 2).reshape(x.sizes())));
    return after + drop(down(drop(torch::gelu(up(behind(after))))));
  }

  torch::nn::LayerNorm before;
  torch::nn::Linear q, k, v, o;
  torch::nn::LayerNorm behind;
  torch::nn::Linear up, down;
  torch::nn::Dropout drop;
};
TORCH_MODULE(GptBlock);

// Its head is tied to the table of its words.
struct Gpt : torch::nn::Module {
  static constexpr std::int64_t kVocabulary = 24;

  explicit Gpt(double dropout = 0)
      : words(register_module("words", torch::nn::Embedding(kVocabulary, GptBlockImpl::kSize))),
        blocks(register_module("blocks", torch::nn::Sequential())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({GptBlockImpl::kSize})))) {
    for (int i = 0; i < 2; ++i) blocks->push_back(GptBlock(dropout));
  }

  Tensor loss(std::int64_t index) {
    const Tensor ids = tokens(index, {2, 7}, kVocabulary);
    const Tensor hidden = norm(blocks->forward(words(ids.slice(1, 0, 6))));
    const Tensor logits = torch::nn::functional::linear(hidden, words->weight);
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.slice(1, 1).flatten());
  }

  torch::nn::Embedding words;
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm;
};

const TensorRule kCut = tensor_named({{"*.q", TensorCut::column},
                                      {"*.k", TensorCut::column},
                                      {"*.v", TensorCut::column},
                                      {"*.o", TensorCut::row},
                                      {"*.up", TensorCut::column},
                                      {"*.down", TensorCut::row},
                                      {"words", TensorCut::column}});

Job cut_job(Job job, int tensor) {
  job.options.tensor = kCut;
  job.tensor = tensor;
  job.ranks *= tensor;
  return job;
}

constexpr double kTolerance = 1e-5;

class TensorAxisPlans : public testing::TestWithParam<std::tuple<Plan, int, int>> {};

TEST_P(TensorAxisPlans, TrainAsOneRankOfTheAxisDoes) {
  const auto& [plan, data, tensor] = GetParam();
  const Job whole{.plan = plan, .ranks = data, .options = {.clip = .5}, .steps = 4};
  const Course<Gpt> course{.make = [] { return std::make_shared<Gpt>(.1); }};
  EXPECT_EQ(difference(train(whole, course), train(cut_job(whole, tensor), course), kTolerance), "");
}

INSTANTIATE_TEST_SUITE_P(All, TensorAxisPlans,
                         testing::Combine(testing::ValuesIn(all_plans()), testing::Values(1, 2), testing::Values(2, 4)),
                         [](const auto& row) {
                           return in_title(std::get<0>(row.param).label()) + "Data" +
                                  std::to_string(std::get<1>(row.param)) + "Tensor" +
                                  std::to_string(std::get<2>(row.param));
                         });

}  // namespace zero::test::tensor_axis_test

// Operators on tensors of which the ranks have parts: values and gradients are those of the whole, however it is cut.
#include <torch/torch.h>

#include "harness.h"
#include "parallel/sharded_call.h"
#include "parallel/sharded_tensor.h"

namespace zero::test::sharded_operators_test {

using at::Tensor;
using Tensors = std::vector<Tensor>;
namespace F = torch::nn::functional;

// A function of tensors of these sizes; of a whole number below `classes` where that is not 0.
struct Input {
  std::vector<std::int64_t> sizes;
  std::int64_t classes = 0;
};
struct Function {
  const char* name;
  std::vector<Input> inputs;
  std::function<Tensor(const Tensors&)> apply;
};

std::vector<Function> of_shapes_and_elements() {
  return {
      {"Linear", {{{3, 4, 8}}, {{12, 8}}, {{12}}}, [](const Tensors& x) { return F::linear(x[0], x[1], x[2]); }},
      {"LinearWithoutBias", {{{4, 8}}, {{12, 8}}}, [](const Tensors& x) { return F::linear(x[0], x[1]); }},
      {"Mm", {{{4, 8}}, {{8, 12}}}, [](const Tensors& x) { return x[0].mm(x[1]); }},
      {"Bmm", {{{4, 8, 12}}, {{4, 12, 8}}}, [](const Tensors& x) { return x[0].bmm(x[1]); }},
      {"Addmm", {{{8}}, {{4, 8}}, {{8, 8}}}, [](const Tensors& x) { return at::addmm(x[0], x[1], x[2], 2, .5); }},
      {"Baddbmm",
       {{{4, 8, 8}}, {{4, 8, 4}}, {{4, 4, 8}}},
       [](const Tensors& x) { return at::baddbmm(x[0], x[1], x[2]); }},
      {"MatmulOfFour", {{{4, 4, 8, 8}}, {{4, 4, 8, 4}}}, [](const Tensors& x) { return x[0].matmul(x[1]); }},
      {"AddBroadcast", {{{4, 8}}, {{8}}}, [](const Tensors& x) { return x[0] + 2 * x[1]; }},
      {"MulBroadcast", {{{4, 1, 8}}, {{4, 1}}}, [](const Tensors& x) { return x[0] * x[1]; }},
      {"InPlace", {{{4, 8}}, {{4, 8}}}, [](const Tensors& x) { return (x[0] * 2).add_(x[1]).relu_(); }},
      {"Gelu", {{{4, 8}}}, [](const Tensors& x) { return at::gelu(x[0]); }},
      {"SwiGlu", {{{4, 8}}, {{4, 8}}}, [](const Tensors& x) { return at::silu(x[0]) * x[1]; }},
      {"Where", {{{4, 8}}, {{4, 8}}}, [](const Tensors& x) { return at::where(x[0] > 0, x[0], x[1]); }},
      {"MaskedFill", {{{4, 8}}}, [](const Tensors& x) { return x[0].masked_fill(x[0] > .5, 2.); }},
      {"Heads",
       {{{4, 6, 8}}},
       [](const Tensors& x) {
         return x[0].view({4, 6, 4, 2}).transpose(1, 2).contiguous().exp();
       }},
      {"HeadsAndBack",
       {{{4, 6, 8}}},
       [](const Tensors& x) {
         return x[0].view({4, 6, 4, 2}).transpose(1, 2).exp().transpose(1, 2).reshape({4, 6, 8});
       }},
      {"Flattened", {{{4, 6, 8}}}, [](const Tensors& x) { return x[0].flatten(0, 1).exp().flatten(); }},
      {"Permute",
       {{{4, 6, 8}}},
       [](const Tensors& x) {
         return x[0].permute({2, 0, 1}).sin();
       }},
      {"TransposedInPlace",
       {{{4, 6, 8}}},
       [](const Tensors& x) {
         Tensor y = x[0].sin();
         const Tensor before = y + 1, view = y.select(1, 2);
         y.transpose_(0, 2).unsqueeze_(1);
         y.mul_(2);
         y.squeeze_(1);
         return y * before.transpose(0, 2) + view.sin().t().unsqueeze(1);
       }},
      {"Squeezed", {{{4, 1, 8}}}, [](const Tensors& x) { return x[0].squeeze().unsqueeze(0).squeeze(0).sin(); }},
      {"SqueezedWhereAPartIsOfSizeOne", {{{2, 1, 4}}}, [](const Tensors& x) { return x[0].squeeze().sin(); }},
      {"Expand",
       {{{4, 1, 8}}},
       [](const Tensors& x) {
         return x[0].expand({2, 4, 6, 8}).sin();
       }},
      {"SliceAndCat",
       {{{4, 8}}},
       [](const Tensors& x) {
         return at::cat({-x[0].slice(1, 4), x[0].slice(1, 0, 4)}, 1) * x[0];
       }},
      {"Halves",
       {{{4, 6, 8}}},
       [](const Tensors& x) {
         const auto halves = x[0].chunk(2, 1);
         return halves[0] * halves[1];
       }},
      {"Select", {{{4, 6, 8}}}, [](const Tensors& x) { return x[0].select(1, 2) + x[0].select(0, 1)[1]; }},
      {"Unbind",
       {{{4, 3, 8}}},
       [](const Tensors& x) {
         const auto each = x[0].unbind(1);
         return each[0] * each[1] + each[2];
       }},
      {"Stack",
       {{{4, 8}}, {{4, 8}}},
       [](const Tensors& x) {
         return at::stack({x[0], x[1]}, 1).sin();
       }},
      {"Repeat",
       {{{4, 8}}},
       [](const Tensors& x) {
         return x[0].repeat({2, 3, 1});
       }},
      {"RepeatInterleave", {{{4, 8, 2}}}, [](const Tensors& x) { return x[0].repeat_interleave(3, 1); }},
  };
}

std::vector<Function> of_networks() {
  return {
      {"SumAll", {{{4, 8}}}, [](const Tensors& x) { return x[0].square().sum(); }},
      {"SumOfSome",
       {{{4, 6, 8}}},
       [](const Tensors& x) {
         return x[0].square().sum({0, 2}).sin();
       }},
      {"SumKept", {{{4, 6, 8}}}, [](const Tensors& x) { return x[0] / x[0].exp().sum(-1, true); }},
      {"MeanAll", {{{4, 8}}}, [](const Tensors& x) { return x[0].square().mean(); }},
      {"MeanOfLast", {{{4, 8}}}, [](const Tensors& x) { return x[0] - x[0].mean(-1, true); }},
      {"RmsNorm",
       {{{4, 6, 8}}, {{8}}},
       [](const Tensors& x) { return x[1] * (x[0] * at::rsqrt(x[0].pow(2).mean(-1, true) + 1e-5)); }},
      {"LayerNorm",
       {{{4, 6, 8}}, {{8}}, {{8}}},
       [](const Tensors& x) { return at::layer_norm(x[0], {8}, x[1], x[2]); }},
      {"LayerNormAndAGradientOfAllRanks",
       {{{4, 6, 8}}, {{8}}, {{8}}, {{4, 6, 8}}},
       [](const Tensors& x) { return at::layer_norm(x[0], {8}, x[1], x[2]).sin() * x[3]; }},
      {"GroupNormInTheOrderOfChannelsLast",
       {{{4, 3, 3, 8}}, {{8}}, {{8}}},
       [](const Tensors& x) {
         return at::group_norm(x[0].permute({0, 3, 1, 2}) * 2, 2, x[1], x[2]).sin();
       }},
      {"Softmax", {{{4, 8}}}, [](const Tensors& x) { return at::softmax(x[0] * 3, -1); }},
      {"SoftmaxOfFirst", {{{4, 8}}}, [](const Tensors& x) { return at::softmax(x[0] * 3, 0); }},
      {"LogSoftmax", {{{4, 8}}}, [](const Tensors& x) { return at::log_softmax(x[0] * 3, -1); }},
      {"Logsumexp", {{{4, 8}}}, [](const Tensors& x) { return x[0].logsumexp(1); }},
      {"CrossEntropy", {{{6, 8}}, {{6}, 8}}, [](const Tensors& x) { return F::cross_entropy(x[0] * 3, x[1]); }},
      {"CrossEntropySum",
       {{{6, 8}}, {{6}, 8}},
       [](const Tensors& x) {
         return F::cross_entropy(x[0], x[1], F::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(3));
       }},
      {"CrossEntropySmoothed",
       {{{6, 8}}, {{6}, 8}},
       [](const Tensors& x) { return F::cross_entropy(x[0], x[1], F::CrossEntropyFuncOptions().label_smoothing(.1)); }},
  };
}

std::vector<Function> of_several_layers() {
  return {
      {"Embedding", {{{12, 8}}, {{4, 6}, 12}}, [](const Tensors& x) { return F::embedding(x[1], x[0]).sin(); }},
      {"EmbeddingWithPadding",
       {{{12, 8}}, {{4, 6}, 12}},
       [](const Tensors& x) { return F::embedding(x[1], x[0], F::EmbeddingFuncOptions().padding_idx(3)).sin(); }},
      {"Attention",
       {{{2, 4, 6, 8}}, {{2, 4, 6, 8}}, {{2, 4, 6, 8}}},
       [](const Tensors& x) { return at::scaled_dot_product_attention(x[0], x[1], x[2], {}, 0, true); }},
      {"AttentionByHand",
       {{{2, 4, 6, 8}}, {{2, 4, 6, 8}}, {{2, 4, 6, 8}}},
       [](const Tensors& x) {
         const Tensor scores = x[0].matmul(x[1].transpose(-2, -1)) / std::sqrt(double(x[0].size(-1)));
         const Tensor mask = at::ones({6, 6}, at::kBool).tril();
         return scores.masked_fill(mask.logical_not(), -1e9).softmax(-1).matmul(x[2]);
       }},
      {"Convolution",
       {{{4, 4, 6}}, {{8, 4, 3}}, {{8}}},
       [](const Tensors& x) { return at::conv1d(x[0], x[1], x[2], 1, 1); }},
      {"Residual",
       {{{4, 8}}, {{8, 8}}, {{8, 8}}},
       [](const Tensors& x) { return x[0] + at::gelu(x[0].mm(x[1])).mm(x[2]); }},
      {"Cumsum", {{{4, 8}}}, [](const Tensors& x) { return x[0].cumsum(1); }},
      {"Max", {{{4, 8}}}, [](const Tensors& x) { return std::get<0>(x[0].max(1)); }},
      {"NormOfRows", {{{4, 8}}}, [](const Tensors& x) { return x[0] / x[0].norm(2, {1}, true); }},
      {"Assigned",
       {{{4, 8}}, {{4}}},
       [](const Tensors& x) {
         Tensor y = x[0] * 2;
         y.select(1, 3).copy_(x[1]);
         return y * y;
       }},
      {"AssignedThroughViews",
       {{{4, 8}}, {{4, 2}}},
       [](const Tensors& x) {
         Tensor y = x[0] * 2;
         const Tensor some = y.slice(1, 2, 6), fewer = some.slice(1, 1, 3);
         fewer.mul_(x[1]);
         y.slice(0, 1, 3).add_(1);
         return y * 3 + at::pad(some, {1, 3}).sin() + fewer.sum();
       }},
      {"OneSequence", {{{1, 4, 8}}, {{12, 8}}, {{12}}}, [](const Tensors& x) { return F::linear(x[0], x[1], x[2]); }},
      {"ScaledHeads",
       {{{2, 6, 8}}},
       [](const Tensors& x) {
         const Tensor q = x[0].view({2, 6, 4, 2}).transpose(1, 2) * 1;
         Tensor scaled = x[0].mul(2).view({2, 6, 4, 2}).transpose(1, 2);
         scaled.mul_(3);
         return (scaled * q).select(1, 2) + scaled.unbind(1)[3];
       }},
      {"WritesToSums",
       {{{4, 8}}, {{8, 8}}},
       [](const Tensors& x) {
         Tensor y = x[0].mm(x[1]);
         const Tensor view = y.view({2, 2, 8});
         y.select(0, 1).zero_();
         const Tensor before = view * 1;
         y.mul_(2);
         return before + view.sin() + y.t().reshape({2, 2, 8});
       }},
      {"GradientsThatShareMemory",
       {{{32}}, {{4, 8}}},
       [](const Tensors& x) {
         const Tensor w = x[0].sin(), u = x[1].sin();
         return ((x[1].view(32) + w) + u.view(32)).sin();
       }},
      {"RoundedDown",
       {{{4, 8}}, {{8, 8}}},
       [](const Tensors& x) { return x[0].mm(x[1]).div(.5, "floor") + x[0].mm(x[1]).neg() + x[0] * 0; }},
      {"TrainedMask",
       {{{2, 4, 6, 8}}, {{2, 4, 6, 8}}, {{1, 4, 6, 6}}},
       [](const Tensors& x) { return at::scaled_dot_product_attention(x[0], x[1], x[1], x[2]); }},
      {"Gathered", {{{4, 8}}, {{4, 2}, 8}}, [](const Tensors& x) { return x[0].gather(1, x[1]); }},
      {"Einsum",
       {{{4, 8}}, {{8, 4}}},
       [](const Tensors& x) {
         return at::einsum("ij,jk->ki", {x[0], x[1]});
       }},
      {"Std", {{{4, 8}}}, [](const Tensors& x) { return x[0].std(1) + x[0].var(); }},
      {"Triangle", {{{4, 8, 8}}}, [](const Tensors& x) { return x[0].tril().sum(2).sin(); }},
      {"Indexed",
       {{{4, 8}}, {{3}, 4}},
       [](const Tensors& x) { return x[0].index({x[1]}) + x[0].index_select(0, x[1]); }},
      {"WeightNormalised",
       {{{8, 4}}, {{8, 1}}},
       [](const Tensors& x) { return at::_weight_norm(x[0], x[1], 0).sin(); }},
  };
}

Tensor attention_by_hand(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor scores = q.matmul(k.transpose(-2, -1)) / std::sqrt(double(q.size(-1)));
  const Tensor mask = at::ones({q.size(-2), q.size(-2)}, at::kBool).tril();
  return scores.masked_fill(mask.logical_not(), -1e9).softmax(-1).matmul(v);
}

// Of one tensor that is several, one behind the other.
std::vector<Function> of_blocks() {
  return {
      {"Thirds",
       {{{4, 24}}},
       [](const Tensors& x) {
         const auto thirds = x[0].chunk(3, 1);
         return thirds[0] * thirds[1] + thirds[2].sin();
       }},
      {"SlicesOfThirds",
       {{{4, 24}}},
       [](const Tensors& x) { return x[0].slice(1, 8, 16) * x[0].slice(1, -8) + x[0].narrow(1, 0, 8); }},
      {"UnequalParts",
       {{{4, 24}}},
       [](const Tensors& x) {
         const auto parts = x[0].split_with_sizes({16, 8}, 1);
         return parts[0].slice(1, 0, 8) * parts[1] + parts[0].slice(1, 8);
       }},
      {"WritesToThirds",
       {{{4, 24}}},
       [](const Tensors& x) {
         Tensor y = x[0] * 2;
         y.narrow(1, 8, 8).mul_(3);
         y.slice(1, 16).add_(1);
         return y.sin();
       }},
      {"WritesToPairsOfThirds",
       {{{4, 24}}},
       [](const Tensors& x) {
         Tensor y = x[0] * 2;
         y.narrow(1, 8, 16).mul_(3);
         y.narrow(1, 0, 16).select(0, 1).mul_(5);
         return y.sin() + y.slice(1, 8).sum();
       }},
      {"WritesToMergedHeads",
       {{{3, 4, 6}}},
       [](const Tensors& x) {
         Tensor y = (x[0] * 2).view({12, 6});
         y.narrow(0, 4, 8).mul_(3);
         return y.sin();
       }},
      {"JoinedWithNothing",
       {{{4, 8}}, {{4, 8}}},
       [](const Tensors& x) {
         const Tensor nothing = at::empty({0}, x[0].options().requires_grad(false));
         return at::cat({at::cat({nothing, x[0]}, 1), x[1]}, 0).sin();
       }},
      {"LastThird", {{{4, 24}}}, [](const Tensors& x) { return x[0].slice(1, -8).sin(); }},
      {"Joined",
       {{{4, 8}}, {{4, 16}}},
       [](const Tensors& x) {
         return at::cat({x[0], x[1] * 2}, 1).sin();
       }},
      {"MergedHeads",
       {{{4, 4, 6, 8}}},
       [](const Tensors& x) {
         const Tensor y = x[0].reshape({16, 6, 8});
         return y.bmm(y.transpose(1, 2)).softmax(-1).view({4, 4, 6, 6}).transpose(1, 2).sin();
       }},
      {"FusedAttention",
       {{{2, 6, 8}}, {{24, 8}}, {{24}}},
       [](const Tensors& x) {
         const auto heads = [](const Tensor& y) { return y.view({2, 6, 4, 2}).transpose(1, 2); };
         const auto qkv = F::linear(x[0], x[1], x[2]).split(8, 2);
         return attention_by_hand(heads(qkv[0]), heads(qkv[1]), heads(qkv[2])).transpose(1, 2).reshape({2, 6, 8});
       }},
      {"FusedAttentionByDimensions",
       {{{2, 6, 8}}, {{24, 8}}},
       [](const Tensors& x) {
         const auto qkv = F::linear(x[0], x[1]).view({2, 6, 3, 4, 2}).permute({2, 0, 3, 1, 4}).unbind(0);
         return at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0, true);
       }},
      {"FusedGates",
       {{{4, 8}}, {{24, 8}}, {{8, 12}}},
       [](const Tensors& x) {
         const auto halves = F::linear(x[0], x[1]).chunk(2, -1);
         return F::linear(at::silu(halves[0]) * halves[1], x[2]);
       }},
      {"JoinedInputs",
       {{{4, 8}}, {{4, 8}}, {{6, 16}}},
       [](const Tensors& x) {
         return F::linear(at::cat({x[0], x[1]}, -1), x[2]);
       }},
  };
}

std::vector<Function> functions() {
  std::vector<Function> all = of_shapes_and_elements();
  for (const std::vector<Function>& more : {of_networks(), of_several_layers(), of_blocks()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct Outputs {
  Tensor result;
  Tensors gradients;
};

// Of inputs that are leaves of the graph.
Outputs run(const Function& function, const Tensors& inputs) {
  Outputs run;
  run.result = function.apply(inputs);
  const Tensor weights = numbers(99, run.result.sizes());
  (run.result * weights).sum().backward();
  for (const Tensor& input : inputs) run.gradients.push_back(input.requires_grad() ? input.grad() : Tensor());
  return run;
}

Tensors inputs_of(const Function& function) {
  Tensors all;
  std::int64_t index = 0;
  for (const Input& input : function.inputs)
    all.push_back(input.classes > 0 ? tokens(++index, input.sizes, input.classes)
                                    : numbers(++index, input.sizes).to(at::kDouble));
  return all;
}

using Way = std::vector<std::optional<TensorCut>>;  // by input; none: replicated

// All ways to cut them.
std::vector<Way> ways_to_cut(const Function& function, int ranks) {
  std::vector<Way> ways{{}};
  for (const Input& input : function.inputs) {
    std::vector<Way> more;
    for (const Way& way : ways) {
      const auto with = [&](const std::optional<TensorCut>& cut) {
        more.push_back(way);
        more.back().push_back(cut);
      };
      with({});
      const std::int64_t dims = input.classes > 0 ? 0 : static_cast<std::int64_t>(input.sizes.size());
      for (std::int64_t dim = 0; dim < dims; ++dim)
        for (const std::int64_t blocks : {1, 2, 3})
          if (input.sizes[static_cast<std::size_t>(dim)] % (ranks * blocks) == 0) with(TensorCut{dim, blocks});
    }
    ways = std::move(more);
  }
  return ways;
}

Tensor cut(const Tensor& input, const std::optional<TensorCut>& how, const std::shared_ptr<TensorAxis>& axis) {
  const Tensor part = how ? axis->own(input, *how).clone() : input.clone();
  Tensor made = how ? sharded::tensor(part, AxisPlacement::shard(*how), axis) : part;
  return input.is_floating_point() ? made.requires_grad_() : made;
}

std::string text(const Way& way) {
  std::string all;
  for (const auto& each : way) all += (each ? name(*each) : "whole") + "; ";
  return all;
}

class ShardedOperators : public testing::TestWithParam<Function> {};

void expect_those_of_the_whole(const Function& function, const TensorAxisOptions& options) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](const World& world) {
      const auto axis = std::make_shared<TensorAxis>(world.communicator(), world.communicator(), nullptr, options);
      Tensors plain = inputs_of(function);
      for (Tensor& input : plain)
        if (input.is_floating_point()) input.requires_grad_();
      const Outputs expected = run(function, plain);
      for (const auto& way : ways_to_cut(function, ranks)) {
        Tensors inputs;
        for (std::size_t i = 0; i < plain.size(); ++i) inputs.push_back(cut(plain[i].detach(), way[i], axis));
        const Outputs found = run(function, inputs);
        const auto same = [&](const Tensor& a, const Tensor& b) {
          if (!a.defined()) return !b.defined();
          const Tensor all = whole(b);
          return a.sizes() == b.sizes() && a.sizes() == all.sizes() && at::allclose(a.detach(), all, 1e-9, 1e-11);
        };
        if (!same(expected.result, found.result)) throw std::runtime_error("values, " + text(way));
        for (std::size_t i = 0; i < plain.size(); ++i)
          if (!same(expected.gradients[i], found.gradients[i]))
            throw std::runtime_error("gradient " + std::to_string(i) + ", " + text(way));
      }
    });
  }
}

TEST_P(ShardedOperators, HaveTheValuesAndGradientsOfTheWhole) {
  expect_those_of_the_whole(GetParam(), {});
}
TEST_P(ShardedOperators, HaveThemInTiles) {
  expect_those_of_the_whole(GetParam(), {.grain = 4});
}
TEST_P(ShardedOperators, HaveThemAlongTheSequence) {
  expect_those_of_the_whole(GetParam(), {.sequence = true});
}

INSTANTIATE_TEST_SUITE_P(All, ShardedOperators, testing::ValuesIn(functions()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace zero::test::sharded_operators_test

// Operators that meet 16-bit parameters give what LibTorch's autocast gives with the same parameters in fp32, wherever
// that gives anything; those that LibTorch has in fp32 alone are computed there.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "harness.h"

namespace zero::test::operators_in_16_bits_test {

struct Net : torch::nn::Module {
  at::Tensor add(const char* name, at::IntArrayRef sizes) { return register_parameter(name, torch::zeros(sizes)); }
  at::Tensor row = add("row", {12}), four = add("four", {4}), one = add("one", {1});
  at::Tensor wide = add("wide", {4, 12}), square = add("square", {12, 12}), rows = add("rows", {6, 12});
  at::Tensor batch = add("batch", {2, 12, 4}), cube = add("cube", {5, 12, 12});
  at::Tensor kernel = add("kernel", {4, 3, 3}), kernel2d = add("kernel2d", {4, 3, 3, 3});
  at::Tensor gru = add("gru", {36, 12}), gru_bias = add("gru_bias", {36});
  at::Tensor lstm = add("lstm", {48, 12}), lstm_bias = add("lstm_bias", {48});
};

using T = at::Tensor;

struct Named {
  std::string name;
  std::function<T(const T& x, Net& net)> use;  // x: [6, 12], in fp32
};

// Symmetric and far from singular.
T regular(const Net& n) {
  return n.square + n.square.t() + 4 * at::eye(12);
}

std::vector<Named> products() {
  return {
      {"linear", [](const T& x, Net& n) { return at::linear(x, n.wide, n.four); }},
      {"einsum",
       [](const T& x, Net& n) {
         return at::einsum("bi,oi,ij->boj", {x, n.wide, n.square});
       }},
      {"tensordot", [](const T& x, Net& n) { return at::tensordot(x, n.wide, {1}, {1}); }},
      {"multi_dot",
       [](const T& x, Net& n) {
         return at::linalg_multi_dot({x, n.square, n.wide.t()});
       }},
      {"bilinear", [](const T& x, Net& n) { return at::bilinear(x, x, n.cube); }},
      {"conv1d",
       [](const T& x, Net& n) {
         return at::conv1d(x.repeat({3, 1}).view({6, 3, 12}), n.kernel, n.four);
       }},
      {"conv2d",
       [](const T& x, Net& n) {
         return at::conv2d(x.repeat({3, 1}).view({2, 3, 6, 6}), n.kernel2d, n.four);
       }},
      {"conv_transpose1d",
       [](const T& x, Net& n) {
         return at::conv_transpose1d(x.repeat({4, 1}).view({6, 4, 12}), n.kernel);
       }},
      {"conv_transpose2d",
       [](const T& x, Net& n) {
         return at::conv_transpose2d(x.repeat({4, 1}).view({2, 4, 6, 6}), n.kernel2d);
       }},
      {"attention",
       [](const T& x, Net& n) {
         const T q = at::linear(x, n.square).view({1, 1, 6, 12});
         return at::scaled_dot_product_attention(q, q, n.rows.view({1, 1, 6, 12}), n.rows.narrow(1, 0, 6));
       }},
      {"causal attention",
       [](const T& x, Net& n) {
         const T q = at::linear(x, n.square).view({1, 1, 6, 12});
         return at::scaled_dot_product_attention(q, q, q, at::full({6, 6}, -1e4).triu(1));
       }},
      {"baddbmm",
       [](const T& x, Net& n) {
         return at::baddbmm(n.four, x.view({2, 3, 12}), n.batch);
       }},
      {"addbmm",
       [](const T& x, Net& n) {
         return at::addbmm(n.four, x.view({2, 3, 12}), n.batch);
       }},
      {"addmm", [](const T& x, Net& n) { return at::addmm(n.four, x, n.wide.t(), 0.5, 2); }},
      {"addmv", [](const T& x, Net& n) { return at::addmv(x.select(1, 0), x, n.row); }},
      {"addr", [](const T& x, Net& n) { return at::addr(n.square, x.select(0, 0), n.row); }},
      {"kron", [](const T& x, Net& n) { return at::kron(x, n.wide); }},
      {"matrix_power", [](const T& x, Net& n) { return at::matmul(x, at::matrix_power(n.square, 2)); }},
      {"cdist", [](const T& x, Net& n) { return at::cdist(x, n.wide); }},
  };
}

std::vector<Named> cells_and_norms() {
  return {
      {"gru_cell",
       [](const T& x, Net& n) {
         return at::gru_cell(x, x.new_zeros({6, 12}), n.gru, n.gru, n.gru_bias, n.gru_bias);
       }},
      {"lstm_cell",
       [](const T& x, Net& n) {
         const T h = x.new_zeros({6, 12});
         return std::get<0>(at::lstm_cell(x, {h, h}, n.lstm, n.lstm, n.lstm_bias, n.lstm_bias));
       }},
      {"rnn_tanh_cell",
       [](const T& x, Net& n) {
         return at::rnn_tanh_cell(x, x.new_zeros({6, 12}), n.square, n.square, n.row, n.row);
       }},
      {"layer_norm", [](const T& x, Net& n) { return at::layer_norm(x, {12}, n.row, n.row); }},
      {"rms_norm", [](const T& x, Net& n) { return at::rms_norm(x, {12}, n.row); }},
      {"group_norm", [](const T& x, Net& n) { return at::group_norm(x, 4, n.row, n.row); }},
      {"batch_norm",
       [](const T& x, Net& n) { return at::batch_norm(x, n.row, n.row, {}, {}, true, 0.1, 1e-5, false); }},
      {"weight_norm",
       [](const T& x, Net& n) {
         return at::linear(x, at::_weight_norm(n.wide, n.wide.norm(2, at::IntArrayRef{1}, true), 0));
       }},
      {"embedding", [](const T& x, Net& n) { return x.narrow(0, 0, 4) * at::embedding(n.wide, at::arange(4)); }},
      {"embedding_bag",
       [](const T& x, Net& n) {
         return x.sum() * std::get<0>(at::embedding_bag(n.wide, at::arange(4), at::tensor({0, 2})));
       }},
      {"prelu", [](const T& x, Net& n) { return at::prelu(x, n.row); }},
      {"cumsum", [](const T& x, Net& n) { return x + at::cumsum(n.row, 0); }},
      {"quantile", [](const T& x, Net& n) { return x * at::quantile(n.row, 0.5); }},
      {"fft", [](const T& x, Net& n) { return at::fft_irfft(at::fft_rfft(x) * at::fft_rfft(n.row)); }},
      {"grid_sampler",
       [](const T& x, Net& n) {
         return at::grid_sampler(x.view({1, 1, 6, 12}), n.wide.narrow(1, 0, 8).reshape({1, 4, 4, 2}), 0, 0, false);
       }},
      {"index_add", [](const T& x, Net& n) { return x.index_add(0, at::arange(4), n.wide); }},
      {"index_put", [](const T& x, Net& n) { return x.index_put({at::arange(4)}, n.wide); }},
      {"masked_scatter", [](const T& x, Net& n) { return x.masked_scatter(x > 100, n.square); }},
      {"lerp", [](const T& x, Net& n) { return at::lerp(x, n.rows, n.row); }},
      {"addcmul_", [](const T& x, Net& n) { return (x * 1).addcmul_(x, n.row); }},
      {"copy_", [](const T& x, Net& n) { return at::linear(x, n.square).copy_(n.rows) + x; }},
  };
}

std::vector<Named> losses() {
  return {
      {"mse", [](const T& x, Net& n) { return at::mse_loss(x, n.rows); }},
      {"binary_cross_entropy",
       [](const T& x, Net& n) { return at::binary_cross_entropy(n.rows.sigmoid(), x.sigmoid()); }},
      {"with logits", [](const T& x, Net& n) { return at::binary_cross_entropy_with_logits(n.rows, x.sigmoid()); }},
      {"cross_entropy",
       [](const T& x, Net& n) { return at::cross_entropy_loss(at::linear(x, n.square), at::arange(6)); }},
      {"kl_div", [](const T& x, Net& n) { return at::kl_div(at::log_softmax(n.rows, 1), at::softmax(x, 1)); }},
      {"huber", [](const T& x, Net& n) { return at::huber_loss(n.rows, x); }},
      {"cosine", [](const T& x, Net& n) { return at::cosine_embedding_loss(n.rows, x, at::ones({6})); }},
      {"triplet", [](const T& x, Net& n) { return at::triplet_margin_loss(n.rows, x, x.flip(0)); }},
      {"ctc",
       [](const T& x, Net& n) {
         const T likely = at::log_softmax(at::linear(x, n.square), 1).view({6, 1, 12});
         return at::ctc_loss(likely, at::ones({1, 2}, at::kLong), at::IntArrayRef{6}, at::IntArrayRef{2});
       }},
  };
}

std::vector<Named> linear_algebra() {
  return {
      {"matrix_exp", [](const T& x, Net& n) { return at::matmul(x, at::matrix_exp(n.square)); }},
      {"matrix_exp of what was computed", [](const T& x, Net& n) { return x.matmul(at::matrix_exp(n.square * 0.5)); }},
      {"det", [](const T& x, Net& n) { return x * at::det(n.square) * 1e4; }},
      {"slogdet", [](const T& x, Net& n) { return x * std::get<1>(at::slogdet(regular(n))); }},
      {"inverse", [](const T& x, Net& n) { return at::matmul(x, at::inverse(regular(n))); }},
      {"solve", [](const T& x, Net& n) { return at::linalg_solve(regular(n), x.t()); }},
      {"cholesky", [](const T& x, Net& n) { return at::matmul(x, at::linalg_cholesky(regular(n))); }},
      {"svdvals", [](const T& x, Net& n) { return x * at::linalg_svdvals(n.square); }},
      {"eigvalsh", [](const T& x, Net& n) { return x * at::linalg_eigvalsh(regular(n)); }},
  };
}

class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype) : before_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, before_);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::ScalarType before_;
};

// Within a tenth of the largest value, which is far above what either rounds.
void expect_near(const T& seen, const T& expected) {
  ASSERT_EQ(seen.sizes(), expected.sizes());
  const T a = seen.to(at::kDouble), b = expected.to(at::kDouble);
  EXPECT_LE((a - b).abs().max().item<double>(), 0.1 * b.abs().max().item<double>());
}

// In plain LibTorch, with the engine's values; by name.
std::map<std::string, T> expected(Net& net, const Engine& engine, const Named& named, at::ScalarType dtype, T& result) {
  Net plain;
  {
    const at::NoGradGuard no_grad;
    for (const auto& each : plain.named_parameters())
      each.value().copy_(engine.main_parameter(net.named_parameters()[each.key()]).to(dtype));
  }
  {
    const Autocast autocast(dtype);
    result = named.use(numbers(1, {6, 12}), plain);
  }
  result.to(at::kFloat).square().mean().backward();
  std::map<std::string, T> gradients;
  for (const auto& each : plain.named_parameters())
    if (each.value().grad().defined()) gradients[each.key()] = each.value().grad();
  return gradients;
}

void expect_as_autocast(const std::vector<Named>& operators) {
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    on_ranks<Net>(
        {.plan = Plan::zero3().precision(precision), .ranks = 1, .options = {.loss_scale = LossScale::fixed(1)}}, {},
        [&](Net& net, Engine& engine, int) {
          const at::ScalarType dtype = precision == Precision::bf16 ? at::kBFloat16 : at::kHalf;
          for (const Named& named : operators) {
            SCOPED_TRACE(named.name + (dtype == at::kHalf ? " in fp16" : " in bf16"));
            T plain;
            const auto gradients = expected(net, engine, named, dtype, plain);
            const T result = named.use(numbers(1, {6, 12}), net);
            expect_near(result.detach(), plain.detach());
            engine.backward(result.to(at::kFloat).square().mean());
            for (const auto& [name, gradient] : gradients)
              expect_near(engine.gradient(net.named_parameters()[name]), gradient);
            engine.discard();
          }
        });
}

TEST(OperatorsIn16Bits, OfProductsAreAutocasts) {
  expect_as_autocast(products());
}

TEST(OperatorsIn16Bits, OfCellsAndNormsAreAutocasts) {
  expect_as_autocast(cells_and_norms());
}

TEST(OperatorsIn16Bits, OfLossesAreAutocasts) {
  expect_as_autocast(losses());
}

TEST(OperatorsIn16Bits, OfLinearAlgebraAreInFp32) {
  expect_as_autocast(linear_algebra());
}

}  // namespace zero::test::operators_in_16_bits_test

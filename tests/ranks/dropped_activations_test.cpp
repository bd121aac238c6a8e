// What operators read of activations that were dropped.
#include <torch/torch.h>

#include <sstream>

#include "activation_trials.h"
#include "deep.h"
#include "harness.h"

namespace zero::test::dropped_activations_test {

// What operators read of what was dropped; each looks at an early activation late in the forward.
struct Reader {
  const char* name;
  std::function<double(at::Tensor& tensor)> read;
};
class ReadersOfDropped : public testing::TestWithParam<Reader> {};

TEST_P(ReadersOfDropped, SeeItsValues) {
  const auto run = [&](const Plan& plan) {
    std::vector<double> seen;
    losses(plan, 4, [&](Deep& model, int step) {
      at::Tensor early;
      return model.loss(input(step), [&](int layer, at::Tensor& y) {
        if (layer == 0) early = y.detach() * 2;
        if (layer == 6) seen.push_back(GetParam().read(early));
      });
    });
    return seen;
  };
  const std::vector<double> without = run(Plan::zero3());
  const Trials trials;
  EXPECT_EQ(run(within({.share = .01})), without);
  EXPECT_GT(trials.recomputed(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, ReadersOfDropped,
    testing::Values(Reader{"Item", [](at::Tensor& x) { return x[3][4].item<double>(); }},
                    Reader{"Print",
                           [](at::Tensor& x) {
                             std::ostringstream text;
                             text << x;
                             return static_cast<double>(std::hash<std::string>()(text.str()) % 1000003);
                           }},
                    Reader{"Equal", [](at::Tensor& x) { return at::equal(x, x.clone()) ? 1.0 : 0.0; }},
                    Reader{"ViewsOfViews",
                           [](at::Tensor& x) {
                             return x.t().slice(0, 3, 40, 2).unsqueeze(1).contiguous().sum().item<double>();
                           }},
                    Reader{"InPlace", [](at::Tensor& x) { return x.select(0, 1).add_(1).sum().item<double>(); }},
                    Reader{"Out",
                           [](at::Tensor& x) {
                             at::add_out(x, at::ones_like(x), at::ones_like(x));
                             return x.sum().item<double>();
                           }},
                    Reader{"SetData",
                           [](at::Tensor& x) {
                             x.set_data(at::ones({64, 64}));
                             return x.sum().item<double>();
                           }},
                    Reader{"Inference",
                           [](at::Tensor& x) {
                             const c10::InferenceMode on;
                             return (x + 1).sum().item<double>();
                           }},
                    Reader{"Saved",
                           [](at::Tensor& x) {
                             std::stringstream file;
                             torch::save(x.clone(), file);
                             at::Tensor y;
                             torch::load(y, file);
                             return y.sum().item<double>();
                           }}),
    [](const auto& each) { return std::string(each.param.name); });

}  // namespace zero::test::dropped_activations_test

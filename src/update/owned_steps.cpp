#include "update/owned_steps.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "device/square_sums.h"
#include "device/torch/devices.h"
#include "device/torch/dtypes.h"
#include "partition/full_tensor_owners.h"

namespace zero {

namespace {

// The root of the sum of the squares, exact before the root.
double frobenius_norm(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  SquareSums squares(device_at(values.device()), 1);
  squares.add(0, values.const_data_ptr(), dtype_of(values.scalar_type()).value(), values.numel());
  return std::sqrt(squares.read().front().value());
}

// Of `rows`, [..., rows, 1], over the rows: one after the other, so that no number of threads shows. On the host.
at::Tensor mean_of_rows(const at::Tensor& rows) {
  const at::Tensor wide = rows.to(at::TensorOptions().dtype(at::kDouble).device(at::kCPU)).contiguous();
  const std::int64_t count = rows.size(-2);
  std::vector<std::int64_t> shape = rows.sizes().vec();
  shape[shape.size() - 2] = 1;
  at::Tensor means = at::empty(shape, wide.options());
  const auto* const values = wide.const_data_ptr<double>();
  for (std::int64_t i = 0; i < means.numel(); ++i)
    means.mutable_data_ptr<double>()[i] =
        std::accumulate(values + i * count, values + (i + 1) * count, 0.0) / static_cast<double>(count);
  return means.to(rows.options());
}

}  // namespace

// Jordan, 2024: the polynomial a x + b x^3 + c x^5 brings every singular value in (0, 1] near 1; the product is formed
// on the shorter side.
at::Tensor orthogonalised(const at::Tensor& input, int iterations) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const auto [rows, columns] = hidden_shape(input.sizes().vec());
  const at::Tensor matrix = input.reshape({rows, columns});
  const bool tall = rows > columns;
  at::Tensor x = matrix.to(at::kFloat).div(frobenius_norm(matrix) + 1e-7).to(at::kBFloat16);
  if (tall) x = x.t().contiguous();
  for (int i = 0; i < iterations; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1);
  }
  return (tall ? x.t() : x).reshape(input.sizes());
}

at::Tensor factored_step(const Adafactor& optimizer, const at::Tensor& g, const at::Tensor& rows,
                         const at::Tensor& columns, std::int64_t step) {
  const double newest = std::pow(static_cast<double>(step), optimizer.beta2_decay);
  const at::Tensor squares = g.square();
  rows.lerp_(squares.mean(-1, /*keepdim=*/true), newest);
  columns.lerp_(squares.mean(-2, /*keepdim=*/true), newest);
  at::Tensor estimate = at::mul(rows, columns);
  estimate.div_(mean_of_rows(rows).clamp_min_(optimizer.eps_square));
  estimate.clamp_min_(optimizer.eps_square * optimizer.eps_square).rsqrt_().mul_(g);
  const double mean = frobenius_norm(estimate) / std::sqrt(static_cast<double>(g.numel()));
  return estimate.div_(std::max(1.0, mean / optimizer.clip));
}

}  // namespace zero

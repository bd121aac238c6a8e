#include "operators/batch_norm.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/lifetimes.h"
#include "operators/operator_rule.h"
#include "zero/error.h"

namespace zero::batch_norm {

struct Layers {
  struct Layer {
    const Added* added;  // by which it is known
    const torch::nn::Module* module;
    Communicator ranks;
  };
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, std::vector<Layer>> known;  // in the order in which they were added
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The operator's arguments in their order.
struct Place {
  enum : std::size_t { input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn, all };
};

struct Group final : torch::CustomClassHolder {
  explicit Group(Communicator communicator) : ranks(std::move(communicator)) {}
  Communicator ranks;
};

// In which values of this dtype are computed with.
at::ScalarType computed_in(const at::Tensor& values) {
  return values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// All dimensions but that of the channels.
std::vector<std::int64_t> reduced_dims(const at::Tensor& x) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < x.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// One value a channel, as an operand of `x` in the dtype that it is computed in.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = values.numel();
  return values.to(x.options().dtype(computed_in(x))).view(shape);
}

// [ranks, values] in fp64, in the host's memory.
at::Tensor gathered(const at::Tensor& mine, const Communicator& ranks) {
  const at::Tensor sent = mine.to(at::kCPU, at::kDouble).contiguous();
  at::Tensor all = at::empty({ranks.size(), sent.numel()}, sent.options());
  ranks.all_gather({sent.const_data_ptr(), sent.numel(), Dtype::f64}, {all.mutable_data_ptr(), all.numel(), Dtype::f64})
      .wait();
  return all;
}

// Of each channel over all ranks, in fp64 in the host's memory.
struct Statistics {
  double count = 0;  // of values
  at::Tensor mean, variance;
};

// This rank's count, means and sums of squares around them: those of empty batches are zeros.
at::Tensor local_statistics(const at::Tensor& x) {
  const std::int64_t channels = x.size(1), count = channels == 0 ? 0 : x.numel() / channels;
  at::Tensor mine = at::zeros({1 + 2 * channels}, at::kDouble);
  if (count == 0) return mine;
  const auto [variance, mean] = at::var_mean(x.to(computed_in(x)), reduced_dims(x), /*correction=*/0);
  mine[0] = count;
  mine.narrow(0, 1, channels).copy_(mean);
  mine.narrow(0, 1 + channels, channels).copy_(variance).mul_(static_cast<double>(count));
  return mine;
}

// Sums of squares around a common mean (Chan, Golub, LeVeque, 1979).
Statistics statistics_of(const at::Tensor& x, const Communicator& ranks) {
  const std::int64_t channels = x.size(1);
  const at::Tensor all = gathered(local_statistics(x), ranks);
  const at::Tensor counts = all.narrow(1, 0, 1), means = all.narrow(1, 1, channels);
  Statistics result{.count = counts.sum().item<double>(), .mean = {}, .variance = {}};
  if (result.count < 2)
    throw StateError("rank " + std::to_string(ranks.rank()) + ": batch normalisation in training of " +
                         std::to_string(static_cast<std::int64_t>(result.count)) + " values a channel on all ranks",
                     "it needs two or more");
  result.mean = (means * counts).sum(0) / result.count;
  const at::Tensor squares = all.narrow(1, 1 + channels, channels) + counts * (means - result.mean).square();
  result.variance = squares.sum(0) / result.count;
  return result;
}

using Optional = std::optional<at::Tensor>;

Optional tensor_in(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() ? Optional(value.toTensor()) : std::nullopt;
}

void keep_running(const Statistics& now, const Optional& mean, const Optional& variance, double weight) {
  const auto keep = [weight](const Optional& running, const at::Tensor& value) {
    if (running) running->mul_(1 - weight).add_((value * weight).to(running->options()));
  };
  keep(mean, now.mean);
  keep(variance, now.variance * (now.count / (now.count - 1)));
}

at::Tensor scaled(const at::Tensor& inverse, const at::Tensor& scale) {
  return scale.defined() ? inverse * scale.to(at::kCPU, at::kDouble) : inverse;
}

struct Norm : torch::autograd::Function<Norm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Optional& weight, const Optional& bias,
                            const at::Tensor& mean, const at::Tensor& inverse, double count,
                            const c10::intrusive_ptr<Group>& group) {
    const at::Tensor scale = weight.value_or(at::Tensor());
    context->save_for_backward({x, scale, mean, inverse});
    if (bias) context->saved_data["bias"] = static_cast<std::int64_t>(bias->scalar_type());
    context->saved_data["count"] = count;
    context->saved_data["group"] = c10::IValue::make_capsule(group);
    const at::Tensor y = (x.to(computed_in(x)) - by_channel(mean, x)).mul_(by_channel(scaled(inverse, scale), x));
    return (bias ? y.add_(by_channel(*bias, x)) : y).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& outputs) {
    if (at::GradMode::is_enabled())
      throw StateError("batch normalisation over ranks has no second derivative", "end the zero::SyncBatchNorm before");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &scale = saved[1], &mean = saved[2], &inverse = saved[3];
    const double count = context->saved_data["count"].toDouble();
    const auto group = c10::static_intrusive_pointer_cast<Group>(context->saved_data["group"].toCapsule());
    const at::Tensor dy = outputs[0].to(computed_in(x));
    const at::Tensor centred = x.to(computed_in(x)) - by_channel(mean, x);
    const at::Tensor sum = dy.sum(reduced_dims(x)), product = (dy * centred).sum(reduced_dims(x));
    variable_list result(7);
    if (scale.defined()) result[1] = (product * inverse.to(product.options())).to(scale.scalar_type());
    if (const auto& bias = context->saved_data["bias"]; !bias.isNone())
      result[2] = sum.to(static_cast<at::ScalarType>(bias.toInt()));
    if (!context->needs_input_grad(0)) return result;
    const at::Tensor means = gathered(at::cat({sum, product}), group->ranks).sum(0) / count;
    const std::int64_t channels = mean.numel();
    const at::Tensor mean_sum = means.narrow(0, 0, channels), mean_product = means.narrow(0, channels, channels);
    const at::Tensor along = by_channel(mean_product * inverse.square(), x);
    result[0] = (dy - by_channel(mean_sum, x) - centred * along).mul_(by_channel(scaled(inverse, scale), x));
    result[0] = result[0].to(x.scalar_type());
    return result;
  }
};

// Over which ranks it is to be computed; none where it is not that of a layer which was added and trains.
std::optional<Communicator> ranks_of(std::span<const c10::IValue> arguments) {
  Layers* const here = ThreadShared<Layers>::here();
  if (here == nullptr || !arguments[Place::training].toBool()) return std::nullopt;
  const std::lock_guard lock(here->mutex);
  for (const std::size_t known_by : {Place::weight, Place::running_mean}) {
    const Optional tensor = tensor_in(arguments[known_by]);
    const auto layer = tensor ? here->known.find(tensor->unsafeGetTensorImpl()) : here->known.end();
    if (layer == here->known.end()) continue;
    const Layers::Layer& latest = layer->second.back();
    return latest.module->is_training() ? std::optional(latest.ranks) : std::nullopt;
  }
  return std::nullopt;
}

void run(const Communicator& ranks, torch::jit::Stack* stack) {
  const std::span<const c10::IValue> given(stack->data() + (stack->size() - Place::all), Place::all);
  const at::Tensor x = given[Place::input].toTensor();
  at::Tensor inverse;
  Statistics now;
  {
    const at::NoGradGuard no_grad;
    now = statistics_of(x, ranks);
    inverse = (now.variance + given[Place::eps].toDouble()).rsqrt();
    keep_running(now, tensor_in(given[Place::running_mean]), tensor_in(given[Place::running_var]),
                 given[Place::momentum].toDouble());
  }
  const at::Tensor y = Norm::apply(x, tensor_in(given[Place::weight]), tensor_in(given[Place::bias]), now.mean, inverse,
                                   now.count, c10::make_intrusive<Group>(ranks));
  torch::jit::drop(*stack, Place::all);
  torch::jit::push(*stack, y);
}

void run_over_ranks(OperatorCall& call) {
  const std::optional<Communicator> ranks = ranks_of(call.arguments);
  if (ranks) call.instead = [&ranks](torch::jit::Stack* stack) { run(*ranks, stack); };
  call.proceed();
}

constexpr auto kBatchNorm = std::to_array<OperatorName>({{"aten::batch_norm"}});

}  // namespace

Added::Added(const at::Tensor& known_by, const torch::nn::Module& layer, const Communicator& ranks)
    : known_by_(known_by.unsafeGetTensorImpl()), layers_(ThreadShared<Layers>::own()) {
  const std::lock_guard lock(layers_->mutex);
  layers_->known[known_by_].push_back({this, &layer, ranks});
}

Added::~Added() {
  const std::lock_guard lock(layers_->mutex);
  const auto found = layers_->known.find(known_by_);
  std::erase_if(found->second, [this](const Layers::Layer& each) { return each.added == this; });
  if (found->second.empty()) layers_->known.erase(found);
}

}  // namespace zero::batch_norm

constexpr zero::OperatorRule zero::operator_rules::batch_norm{zero::batch_norm::kBatchNorm, zero::OperatorRule::always,
                                                              zero::batch_norm::run_over_ranks};

// What an optimizer of LibTorch's kind keeps of a parameter, field by field, by the door that it has for files.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zero/dtype.h"
#include "zero/optimizer.h"

namespace zero {

// Of one dimension and a value an element, or a number, of none; of the host.
using TorchFields = std::map<std::string, at::Tensor>;

// Of a parameter that it has, of `numel` elements; none where it keeps nothing. Throws ConfigError for what is neither
// a tensor as long as the parameter nor a number.
TorchFields fields_of(torch::optim::Optimizer& made, const at::Tensor& parameter, std::int64_t numel,
                      const std::string& label);
void set_fields(torch::optim::Optimizer& made, const at::Tensor& parameter, const TorchFields& fields);

// Makes an optimizer of `parameter`, a leaf, and lets it step once without a gradient, so that its state is there.
std::unique_ptr<torch::optim::Optimizer> begun(const TorchOptimizer& optimizer, at::Tensor& parameter);

// A field as it is kept of one parameter.
struct TorchField {
  std::string name;
  Dtype dtype;
  bool elementwise;
};
// What it keeps of a parameter whose main weights are of type `wide`, tried out.
std::vector<TorchField> fields_kept(const TorchOptimizer& optimizer, Dtype wide);

}  // namespace zero

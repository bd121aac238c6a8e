// What stands for a gradient that an engine has: a tensor of the parameter's sizes without values, so that who computes
// with it is told where the gradient is, and who empties it is heard.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace zero::grad_placeholder {

// `place`: the rank and the parameter, for errors.
at::Tensor make(const at::Tensor& parameter, std::string place);
bool is_one(const at::Tensor& tensor);
// Whether zero_() was called on it.
bool emptied(const at::Tensor& placeholder);
// As it was made.
void renew(const at::Tensor& placeholder);

}  // namespace zero::grad_placeholder

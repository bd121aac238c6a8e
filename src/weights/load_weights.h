// What zero::load_safetensors() does, with weights that are open.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "persist/weight_files.h"
#include "zero/safetensors.h"

namespace zero {

// `files`: what errors call them. What is deferred is read when it is wanted, on the thread that wants it.
void load_weights(torch::nn::Module& module, std::shared_ptr<Weights> weights, const std::string& files,
                  const TensorNames& names = {}, const std::function<bool(const std::string&)>& left_out = {});

}  // namespace zero

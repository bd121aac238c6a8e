#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/text.h"
#include "device/torch/dtypes.h"
#include "engine/module_tensors.h"
#include "parallel/sharded_tensor.h"
#include "persist/folders.h"
#include "persist/safetensors_writer.h"
#include "zero/error.h"
#include "zero/safetensors.h"

namespace zero {
namespace {

constexpr std::int64_t kElementsOnTheirWay = std::int64_t{4} << 20;

struct SafetensorsSource {
  std::vector<at::Tensor> parts;  // one after the other
  at::ScalarType type;            // to be written
};

// The first name that is not empty.
std::string written_name(const ModuleTensor& tensor, const TensorNames& names) {
  for (const std::string& name : tensor.names)
    if (std::string file_name = names(name); !file_name.empty()) return file_name;
  return {};
}

void write_values(const SafetensorsSource& source, const WriteBytes& write) {
  for (const at::Tensor& part : source.parts) {
    const at::Tensor flat = part.contiguous().view(-1);
    for (std::int64_t at = 0; at < flat.numel(); at += kElementsOnTheirWay) {
      const std::int64_t count = std::min(kElementsOnTheirWay, flat.numel() - at);
      const at::Tensor values = flat.narrow(0, at, count).to(at::kCPU, source.type);
      write(values.const_data_ptr(), count * values.element_size());
    }
  }
}

}  // namespace

void save_safetensors(const torch::nn::Module& module, const std::string& folder, const SaveSafetensors& options) {
  const at::NoGradGuard no_grad;
  if (options.dtype && !dtype_of(scalar_type(*options.dtype)))
    throw ConfigError("weights cannot be written as " + std::string(name(*options.dtype)), "use a floating-point type");
  std::vector<SafetensorsSource> sources;
  std::vector<WeightTensor> tensors;
  std::map<std::string, std::size_t> tiled;  // by name
  for (const ModuleTensor& each : tensors_of(module)) {
    const std::string name = written_name(each, options.names);
    if (name.empty()) continue;
    if (sharded::is_sharded(each.tensor.unsafeGetTensorImpl()))
      throw StateError("parameter '" + name + "' is cut over a tensor axis, and no rank can write all of it alone",
                       "save a checkpoint, and export that, or release() the engine before");
    const at::ScalarType own = each.tensor.scalar_type();
    const at::ScalarType type = options.dtype && at::isFloatingType(own) ? scalar_type(*options.dtype) : own;
    const auto written = tensor_type_of(type);
    if (each.tile && each.tile->begin > 0) {
      sources[tiled.at(name)].parts.push_back(each.tensor);
      continue;
    }
    if (each.tile) tiled.emplace(name, sources.size());
    if (!written)
      throw ConfigError("tensor " + in_quotes(name) + " is of type " + c10::toString(type) +
                        ", which safetensors files do not have");
    sources.push_back({{each.tensor}, type});
    tensors.push_back({name, *written, each.shape()});
  }
  create_lasting_folder(posix_env(), folder);
  write_safetensors_model(posix_env(), folder, tensors, options.file_bytes,
                          [&](std::size_t tensor, const WriteBytes& write) { write_values(sources[tensor], write); });
}

}  // namespace zero

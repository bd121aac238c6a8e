// Checkpoints: how they are written and read, and what they bring back of the program's own.
#include "zero/checkpoint.h"

#include <ATen/Functions.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "native/bind_engine.h"
#include "zero/error.h"
#include "zero/world.h"

namespace zero::python {
namespace {

constexpr std::pair<at::ScalarType, Dtype> kDtypes[] = {
    {at::kFloat, Dtype::f32}, {at::kDouble, Dtype::f64}, {at::kBFloat16, Dtype::bf16}, {at::kHalf, Dtype::f16},
    {at::kLong, Dtype::i64},  {at::kInt, Dtype::i32},    {at::kByte, Dtype::u8}};

Dtype dtype_of(const std::string& name, const at::Tensor& tensor) {
  for (const auto& [torchs, ours] : kDtypes)
    if (tensor.scalar_type() == torchs) return ours;
  throw ConfigError("a checkpoint cannot hold '" + name + "' of dtype " + at::toString(tensor.scalar_type()),
                    "one of fp32, fp64, bf16, fp16, int64, int32 and uint8");
}

// Options for a save, and the memory that they refer to.
struct Save {
  SaveOptions options;
  std::vector<at::Tensor> held;
};

WhileSaving while_saving_named(const std::string& name) {
  if (name == "wait") return WhileSaving::wait;
  if (name == "refuse") return WhileSaving::refuse;
  throw ConfigError("a save cannot '" + name + "' while another is under way", "wait or refuse");
}

Save save_options(const std::string& user, const std::map<std::string, at::Tensor>& tensors, bool frozen,
                  std::int64_t keep_last, std::int64_t keep_every, bool replace, bool background,
                  const std::string& while_saving) {
  Save save{{.user = user,
             .frozen = frozen,
             .keep_last = keep_last,
             .keep_every = keep_every,
             .replace = replace,
             .background = background,
             .while_saving = while_saving_named(while_saving)},
            {}};
  for (const auto& [name, tensor] : tensors) {
    save.held.push_back(tensor.detach().cpu().contiguous());
    save.options.tensors.push_back(
        {name, dtype_of(name, tensor), tensor.sizes().vec(), save.held.back().const_data_ptr()});
  }
  return save;
}

at::Tensor tensor_of(const RestoredTensor& restored) {
  for (const auto& [torchs, ours] : kDtypes) {
    if (restored.dtype != ours) continue;
    const at::Tensor tensor = at::empty(restored.shape, torchs);
    if (!restored.values.empty())
      std::memcpy(tensor.mutable_data_ptr(), restored.values.data(), restored.values.size());
    return tensor;
  }
  throw CheckpointError("'" + restored.name + "' is of a dtype that PyTorch has not");
}

std::map<std::string, at::Tensor> restored_tensors(const Restored& restored) {
  std::map<std::string, at::Tensor> tensors;
  for (const RestoredTensor& each : restored.tensors) tensors.emplace(each.name, tensor_of(each));
  return tensors;
}

using Released = py::call_guard<py::gil_scoped_release>;

}  // namespace

void bind_saves(EngineClass& engine) {
  engine
      .def(
          "save",
          [](Engine& self, const std::string& folder, const Save& save) { return self.save(folder, save.options); },
          "folder"_a, "options"_a, Released())
      .def("finish_save", &Engine::finish_save, Released())
      .def(
          "load",
          [](Engine& self, const std::string& folder, std::optional<std::int64_t> step, bool weights_only,
             bool allow_new_optimizer) {
            return self.load(folder, {step, weights_only, allow_new_optimizer});
          },
          "folder"_a, "step"_a, "weights_only"_a, "allow_new_optimizer"_a, Released());
}

void bind_checkpoints(py::module_& module) {
  py::class_<Save>(module, "SaveOptions")
      .def(py::init(&save_options), py::kw_only(), "user"_a, "tensors"_a, "frozen"_a, "keep_last"_a, "keep_every"_a,
           "replace"_a, "background"_a, "while_saving"_a);
  py::class_<Restored>(module, "Restored")
      .def_readonly("folder", &Restored::folder)
      .def_readonly("step", &Restored::step)
      .def_readonly("user_text", &Restored::user)
      .def_property_readonly("tensors", &restored_tensors);
  module.def("checkpoint_steps", &checkpoint_steps, "folder"_a);
  module.def("find_checkpoint", &find_checkpoint, "path"_a, Released());
  module.def("prepare_checkpoints", &prepare_checkpoints, "world"_a, "folder"_a, Released());
}

}  // namespace zero::python

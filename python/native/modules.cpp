#include "native/modules.h"

#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "zero/error.h"

namespace zero::python {
namespace {

std::string class_of(py::handle object) {
  return py::str(py::type::handle_of(object).attr("__name__"));
}

// The classes that PyTorch's modules are told by.
struct Classes {
  py::module_ torch = py::module_::import("torch");
  py::object nn = torch.attr("nn");
  py::object module = nn.attr("Module");
  py::object containers = py::make_tuple(nn.attr("Sequential"), nn.attr("ModuleList"), nn.attr("ModuleDict"));
  py::object embeddings = py::make_tuple(nn.attr("Embedding"), nn.attr("EmbeddingBag"));
  py::object scripted = torch.attr("jit").attr("ScriptModule");
  py::object lazy = nn.attr("parameter").attr("UninitializedTensorMixin");
};

class Describer {
 public:
  explicit Describer(const Classes& classes) : classes_(classes) {}

  std::shared_ptr<DescribedModule> visit(py::handle module, const std::string& path) {
    const auto [entry, fresh] = seen_.try_emplace(module.ptr());
    if (!fresh) {
      if (!entry->second) refuse("module", path, "contains itself");
      return entry->second;
    }
    auto result = std::make_shared<DescribedModule>(traits_of(module));
    if (!module_faults(module, path)) {
      for (const auto& [name, parameter] : dictionary(module, "_parameters"))
        if (!parameter.is_none()) add_parameter(*result, py::str(name), parameter, path);
      const py::set not_persistent(module.attr("_non_persistent_buffers_set"));
      for (const auto& [name, buffer] : dictionary(module, "_buffers"))
        if (!buffer.is_none())
          result->register_buffer(py::str(name), tensor_of(buffer), !not_persistent.contains(name));
      for (const auto& [name, child] : dictionary(module, "_modules"))
        if (!child.is_none()) add_child(*result, py::str(name), child, path);
    }
    return seen_[module.ptr()] = result;
  }

  void throw_faults() const {
    if (faults_.empty()) return;
    std::string text = "this module cannot be trained:";
    for (const std::string& fault : faults_) text += "\n  - " + fault;
    throw ConfigError(text);
  }

 private:
  static py::dict dictionary(py::handle module, const char* name) { return py::dict(module.attr(name)); }
  static const at::Tensor& tensor_of(py::handle tensor) { return THPVariable_Unpack(tensor.ptr()); }
  static std::string join(const std::string& path, const std::string& name) {
    return path.empty() ? name : path + "." + name;
  }

  ModuleTraits traits_of(py::handle module) const {
    ModuleTraits traits{.type = class_of(module),
                        .container = py::isinstance(module, classes_.containers),
                        .embedding = py::isinstance(module, classes_.embeddings)};
    if (!traits.embedding) return traits;
    traits.max_norm = py::cast<std::optional<double>>(module.attr("max_norm"));
    traits.norm_type = py::cast<double>(module.attr("norm_type"));
    return traits;
  }

  bool refuse(const std::string& what, const std::string& name, const std::string& why) {
    faults_.push_back(what + " '" + name + "' " + why);
    return true;
  }

  // Around another module, by the names of classes that need not be there.
  bool module_faults(py::handle module, const std::string& path) {
    if (py::isinstance(module, classes_.scripted))
      return refuse("module", path, "is one of TorchScript: give the engine the module that it was made of");
    for (const py::handle base : py::type::handle_of(module).attr("__mro__")) {
      const std::string name = py::str(base.attr("__name__"));
      if (name == "OptimizedModule")
        return refuse("module", path,
                      "is compiled by torch.compile, whose kernels go past the operators that bring parameters: give "
                      "the engine the module inside it");
      if (name == "DistributedDataParallel" || name == "DataParallel" || name == "FullyShardedDataParallel")
        return refuse("module", path, "is trained by PyTorch's " + name + ": give the engine the module inside it");
    }
    return false;
  }

  void add_parameter(DescribedModule& into, const std::string& name, py::handle parameter, const std::string& path) {
    if (py::isinstance(parameter, classes_.lazy)) {
      refuse("parameter", join(path, name), "has no shape yet: run a forward before the engine is built");
      return;
    }
    const at::Tensor& tensor = tensor_of(parameter);
    if (tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python)) {
      refuse("parameter", join(path, name),
             "is a " + class_of(parameter) + ", whose memory is not its own: make it a plain tensor");
      return;
    }
    into.register_parameter(name, tensor, tensor.requires_grad());
  }

  void add_child(DescribedModule& into, const std::string& name, py::handle child, const std::string& path) {
    if (const auto below = visit(child, join(path, name))) into.register_module(name, below);
  }

  const Classes& classes_;
  std::unordered_map<PyObject*, std::shared_ptr<DescribedModule>> seen_;  // null: under way
  std::vector<std::string> faults_;
};

std::shared_ptr<DescribedModule> tree_of(py::handle module, const Classes& classes) {
  Describer describer(classes);
  auto result = describer.visit(module, "");
  describer.throw_faults();
  return result;
}

// Of a module and those below, each once.
void add_parameters(py::handle module, std::unordered_set<PyObject*>& seen, std::vector<at::Tensor>& all) {
  if (!seen.insert(module.ptr()).second) return;
  for (const auto& [name, parameter] : py::dict(module.attr("_parameters")))
    if (THPVariable_Check(parameter.ptr())) all.push_back(THPVariable_Unpack(parameter.ptr()));
  for (const auto& [name, child] : py::dict(module.attr("_modules")))
    if (!child.is_none()) add_parameters(child, seen, all);
}

class Source final : public DescribedSource {
 public:
  explicit Source(py::handle module) : module_(std::make_unique<py::weakref>(module)) {}
  ~Source() override {
    const py::gil_scoped_acquire held;
    module_.reset();
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  std::shared_ptr<DescribedModule> describe() const override {
    const py::gil_scoped_acquire held;
    const py::object module = (*module_)();
    return module.is_none() ? nullptr : tree_of(module, Classes());
  }
  bool parameters(std::vector<at::Tensor>& all) const override {
    const py::gil_scoped_acquire held;
    const py::object module = (*module_)();
    std::unordered_set<PyObject*> seen;
    if (!module.is_none()) add_parameters(module, seen, all);
    return !module.is_none();
  }

 private:
  std::unique_ptr<py::weakref> module_;
};

}  // namespace

std::shared_ptr<DescribedModule> described(py::handle module) {
  const Classes classes;
  if (!py::isinstance(module, classes.module))
    throw ConfigError("an engine trains a torch.nn.Module, not a " + class_of(module));
  auto result = tree_of(module, classes);
  result->made_of(std::make_shared<Source>(module));
  return result;
}

}  // namespace zero::python

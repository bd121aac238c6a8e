// A Python program's module, as engines see one.
#pragma once

#include <memory>

#include "native/bindings.h"
#include "zero/described_module.h"

namespace zero::python {

// Of a torch.nn.Module: its tree, with the very tensors that it computes with, which is made again when an engine looks
// at the module later. The module is not kept. Throws ConfigError, listing every fault,
// for what an engine cannot train: modules that are compiled or scripted, and parameters that have no memory of their
// own because they are lazy or of a class that computes for itself (DTensor). Needs the GIL.
std::shared_ptr<DescribedModule> described(py::handle module);

}  // namespace zero::python

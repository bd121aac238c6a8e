// Weights in and out of files in the safetensors format, as Hugging Face lays out a model: model.safetensors, or
// several files and model.safetensors.index.json.
//
//   zero::load_safetensors(*model, "llama-3.2-1b");  // before an engine takes the module
//   zero::save_safetensors(*model, "out", {.dtype = zero::Dtype::bf16});
//
// While an engine has the module its parameters are whole inside a gather scope only, and there these two may be
// called:
//
//   const zero::Gather whole = zero::gather(model->parameters(), 0);  // every rank; rank 0's values win
//   if (world.rank() == 0) zero::load_safetensors(*model, "llama-3.2-1b");
//
// Under narrower precisions what is whole there is the narrow parameters. The main weights of a run are in its
// checkpoints (Engine::save), which export_safetensors() turns into such a folder without a module.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "zero/dtype.h"

namespace torch::nn {
class Module;
}

namespace zero {

// What a tensor that the module calls so is called in the files. The empty name: it is not there.
class TensorNames {
 public:
  TensorNames() = default;  // the same
  // Those that are not in it are the same.
  TensorNames(std::map<std::string, std::string> names);  // NOLINT(google-explicit-constructor)
  template <std::invocable<const std::string&> Name>
  TensorNames(Name name) : name_(std::move(name)) {}  // NOLINT(google-explicit-constructor)

  std::string operator()(const std::string& name) const { return name_ ? name_(name) : name; }

 private:
  std::function<std::string(const std::string&)> name_;
};

// Sets the parameters and buffers of a module, in place and without their history, from `files`: a safetensors file, a
// folder with model.safetensors or an index, an index "*.json", or a checkpoint (Engine::save; its main weights, where
// it has any). Floating-point types are converted into each other, others have to be the same. A tensor that the module
// has under several names is needed under one of them; where the files have several, they have to be equal. Tensors of
// the files that `left_out` is true for are not looked at.
//
// Beside the module it takes the memory of 4 MiB of elements, or, for a tensor that is not contiguous, of that tensor.
//
// Throws ConfigError, listing every tensor that is missing, not expected, or of another shape or type, nothing being
// changed; CheckpointError for files that cannot be read; StateError where an engine has a parameter and no gather
// scope holds it. Not collective: every rank that calls it reads what it needs of the files.
void load_safetensors(torch::nn::Module& module, const std::string& files, const TensorNames& names = {},
                      const std::function<bool(const std::string&)>& left_out = {});

struct SaveSafetensors {
  // To which floating-point tensors are converted; none: each as it is.
  std::optional<Dtype> dtype = {};
  // Of the tensors of a file; a tensor that is larger has a file of its own. 5 GB, as Hugging Face has it.
  std::int64_t file_bytes = 5'000'000'000;
  TensorNames names = {};
};

// Writes parameters and buffers of a module into `folder`, which it makes where it is not there: one model.safetensors,
// or model-00001-of-00003.safetensors and so on with an index. What the module has under several names is written under
// the first. The files get their names when all of them are on the disk.
//
// Throws CheckpointError where something cannot be written or the folder has weights already; ConfigError for a tensor
// of a type that the format has not, and for options that cannot work; StateError as load_safetensors(). Not
// collective: one rank writes.
void save_safetensors(const torch::nn::Module& module, const std::string& folder, const SaveSafetensors& options = {});

struct ExportSafetensors {
  std::optional<Dtype> dtype = {};                // fp32, bf16, fp16, likewise
  std::int64_t file_bytes = 5'000'000'000;        // likewise
  std::map<std::string, std::string> texts = {};  // files that are put beside the weights, by name: config.json
  // Hears how many bytes of weights are written, of all.
  std::function<void(std::int64_t done, std::int64_t all)> progress = {};
};

// Writes parameters and buffers of a checkpoint, its main weights where it has any, as `folder`, which gets its name
// when all is on the disk; until then it is `folder`.partial. Needs neither the module nor memory for it.
//
// Throws CheckpointError where the checkpoint is damaged or something cannot be written; ConfigError where `folder` is
// there and not empty, and for options that cannot work. Not collective: one rank writes. Any thread.
void export_safetensors(const std::string& checkpoint, const std::string& folder,
                        const ExportSafetensors& options = {});

}  // namespace zero

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/elements.h"
#include "base/text.h"
#include "persist/folders.h"
#include "persist/safetensors_writer.h"
#include "persist/weight_files.h"
#include "zero/error.h"
#include "zero/safetensors.h"

namespace zero {
namespace {

constexpr std::int64_t kStretch = std::int64_t{1} << 20;  // elements that are read, converted and written at a time

// Of those that can be converted.
std::optional<Dtype> floating(TensorType type) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16})
    if (type_of(dtype) == type) return dtype;
  return {};
}

class Export {
 public:
  Export(Env& env, const std::string& checkpoint, const ExportSafetensors& options)
      : env_(env), options_(options), weights_(env, checkpoint) {
    for (const WeightTensor& tensor : weights_.tensors()) {
      written_.push_back(tensor);
      if (options.dtype && floating(tensor.type)) written_.back().type = type_of(*options.dtype);
      all_ += *bytes_of(written_.back().type, tensor.shape);
    }
  }

  void write(const std::string& folder) {
    for (const auto& [name, text] : options_.texts) write_text(env_, folder + "/" + name, text);
    write_safetensors_model(env_, folder, written_, options_.file_bytes,
                            [&](std::size_t tensor, const WriteBytes& to) { write(tensor, to); });
  }

 private:
  void write(std::size_t tensor, const WriteBytes& to) {
    const WeightTensor& kept = weights_.tensors()[tensor];
    const TensorType type = written_[tensor].type;
    const std::int64_t item = bits_of(kept.type) / 8, new_item = bits_of(type) / 8;
    for (std::int64_t at = 0; at < kept.numel(); at += kStretch) {
      const std::int64_t count = std::min(kStretch, kept.numel() - at);
      values_.resize(static_cast<std::size_t>(count * item));
      weights_.read(tensor, at, at + count, values_.data());
      if (type != kept.type) {
        converted_.resize(static_cast<std::size_t>(count * new_item));
        convert_elements(values_.data(), *floating(kept.type), converted_.data(), *options_.dtype, count);
      }
      to((type == kept.type ? values_ : converted_).data(), count * new_item);
      done_ += count * new_item;
      if (options_.progress) options_.progress(done_, all_);
    }
  }

  Env& env_;
  const ExportSafetensors& options_;
  CheckpointWeights weights_;
  std::vector<WeightTensor> written_;
  std::vector<char> values_, converted_;
  std::int64_t done_ = 0, all_ = 0;
};

// A folder that is removed, as far as that can be done, unless it gets its name.
class NewFolder {
 public:
  NewFolder(Env& env, std::string folder)
      : env_(env), folder_(std::move(folder)), partial_(folder_ + std::string(kPartial)) {
    if (env.exists(partial_)) remove_folder(env, partial_);
    create_lasting_folder(env, partial_);
    there_ = true;
  }
  ~NewFolder() {
    if (there_) try {
        remove_folder(env_, partial_);
      } catch (const CheckpointError&) {  // then the next export to it does
      }
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::string& path() const { return partial_; }

  void publish() {
    env_.rename(partial_, folder_);
    there_ = false;
    const std::string parent = std::filesystem::path(folder_).parent_path().string();
    env_.sync_folder(parent.empty() ? "." : parent);
  }

 private:
  Env& env_;
  std::string folder_, partial_;
  bool there_ = false;
};

std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

}  // namespace

void export_safetensors(const std::string& checkpoint, const std::string& given, const ExportSafetensors& options) {
  Env& env = posix_env();
  const std::string folder = without_slash(given);
  if (options.dtype && !is_floating(*options.dtype))
    throw ConfigError("weights cannot be written as " + std::string(name(*options.dtype)), "use fp32, bf16 or fp16");
  if (env.exists(folder) && !env.list(folder).empty())
    throw ConfigError(in_quotes(folder) + " is there already", "remove it, or choose another folder");
  Export model(env, checkpoint, options);
  NewFolder place(env, folder);
  model.write(place.path());
  place.publish();
}

}  // namespace zero

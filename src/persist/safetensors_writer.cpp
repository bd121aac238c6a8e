#include "persist/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include "base/text.h"
#include "persist/new_files.h"
#include "persist/safetensors_folder.h"
#include "zero/error.h"

namespace zero {
namespace {

std::int64_t tensor_bytes(const WeightTensor& tensor) {
  const auto bytes = bytes_of(tensor.type, tensor.shape);
  if (!bytes) throw CheckpointError("tensor " + in_quotes(tensor.name, '"') + " has no size in bytes");
  return *bytes;
}

std::string shard_name(std::size_t index, std::size_t count) {
  std::array<char, 80> name{};
  std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name.data();
}

void refuse_weights(Env& env, const std::string& folder) {
  for (const std::string_view name : {kSafetensorsModel, kSafetensorsIndex})
    if (env.exists(folder + "/" + std::string(name)))
      throw CheckpointError("the folder " + in_quotes(folder) + " has a " + std::string(name) + " already",
                            "remove the weights in it, or choose another folder");
}

class ModelWriter {
 public:
  ModelWriter(Env& env, const std::string& folder, const std::vector<WeightTensor>& tensors, const TensorBytes& bytes)
      : tensors_(tensors), bytes_(bytes), files_(env, folder) {}

  void write(const std::vector<std::vector<std::size_t>>& shards) {
    if (shards.size() == 1) {
      write_file(std::string(kSafetensorsModel), shards.front());
    } else {
      for (std::size_t i = 0; i < shards.size(); ++i) write_file(shard_name(i, shards.size()), shards[i]);
      write_index();
    }
    files_.publish();
  }

 private:
  // Wider types first, so that every tensor begins at a multiple of its element's size.
  void write_file(const std::string& name, std::vector<std::size_t> shard) {
    std::ranges::stable_sort(shard, std::greater<>(), [&](std::size_t i) { return bits_of(tensors_[i].type); });
    SafetensorsHeader header;
    header.metadata = {{"format", "pt"}};
    for (const std::size_t i : shard) {
      const WeightTensor& tensor = tensors_[i];
      header.tensors.push_back({tensor.name, tensor.type, tensor.shape});
      if (!places_.emplace(tensor.name, name).second)
        throw CheckpointError("two tensors are to be written as " + in_quotes(tensor.name, '"'));
    }
    const std::string text = write_safetensors_header(header);
    const std::unique_ptr<WritableFile> file = files_.create(name);
    file->write(text.data(), static_cast<std::int64_t>(text.size()));
    for (const std::size_t i : shard) write_tensor(*file, i);
    file->sync();
    file->close();
  }

  void write_tensor(WritableFile& file, std::size_t tensor) {
    std::int64_t left = tensor_bytes(tensors_[tensor]);
    bytes_(tensor, [&](const void* bytes, std::int64_t count) {
      left -= count;
      if (left >= 0) file.write(bytes, count);
    });
    if (left != 0)
      throw StateError("tensor " + in_quotes(tensors_[tensor].name, '"') + " was given " +
                       (left > 0 ? "fewer" : "more") + " bytes than it has");
  }

  void write_index() {
    std::int64_t bytes = 0;
    for (const WeightTensor& tensor : tensors_) bytes += tensor_bytes(tensor);
    const std::string text = write_safetensors_index(places_, bytes);
    const std::unique_ptr<WritableFile> file = files_.create(std::string(kSafetensorsIndex));
    file->write(text.data(), static_cast<std::int64_t>(text.size()));
    file->sync();
    file->close();
  }

  const std::vector<WeightTensor>& tensors_;
  const TensorBytes& bytes_;
  NewFiles files_;
  SafetensorsFiles places_;
};

}  // namespace

std::vector<std::vector<std::size_t>> shards_of(const std::vector<WeightTensor>& tensors, std::int64_t most) {
  std::vector<std::vector<std::size_t>> shards(1);
  std::int64_t room = most;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t bytes = tensor_bytes(tensors[i]);
    if (bytes > room && !shards.back().empty()) {
      shards.emplace_back();
      room = most;
    }
    shards.back().push_back(i);
    room -= bytes;
  }
  return shards;
}

void write_safetensors_model(Env& env, const std::string& folder, const std::vector<WeightTensor>& tensors,
                             std::int64_t most, const TensorBytes& bytes) {
  if (most < 1)
    throw ConfigError("files of at most " + std::to_string(most) + " bytes", "give a limit of one byte or more");
  refuse_weights(env, folder);
  ModelWriter(env, folder, tensors, bytes).write(shards_of(tensors, most));
}

}  // namespace zero

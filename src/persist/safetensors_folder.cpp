#include "persist/safetensors_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "persist/json_events.h"
#include "zero/error.h"

namespace zero {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFiles = "weight_map";
constexpr int kDeepest = 64;

// {"metadata": {anything}, "weight_map": {"tensor": "file"}}
class IndexEvents final : public JsonEvents {
 public:
  IndexEvents(const std::string& source, SafetensorsFiles& files) : JsonEvents(source), files_(files) {}

  void finish() const {
    if (!seen_) fail("has no " + std::string(kFiles));
  }

 private:
  enum class Next : std::uint8_t { index, member, files, tensor, file, ignored };

  void take_key(std::string& key) override {
    if (next_ == Next::member) {
      const bool files = key == kFiles;
      if (files && std::exchange(seen_, true)) fail("has " + std::string(kFiles) + " twice");
      next_ = files ? Next::files : Next::ignored;
    } else if (next_ == Next::tensor) {
      const auto [at, fresh] = files_.emplace(std::move(key), std::string());
      if (!fresh) fail("has the tensor " + in_quotes(at->first, '"') + " twice");
      at_ = at;
      next_ = Next::file;
    }
  }
  void take_text(std::string& text) override {
    if (next_ != Next::file) return other("a string");
    require_inside(text);
    at_->second = std::move(text);
    next_ = Next::tensor;
  }
  void take_natural(std::uint64_t) override { other("a number"); }
  void open_object() override {
    if (next_ == Next::ignored) return ignore();
    if (next_ != Next::index && next_ != Next::files) return other("an object");
    next_ = next_ == Next::index ? Next::member : Next::tensor;
  }
  void open_array() override {
    if (next_ == Next::ignored) return ignore();
    other("a list");
  }
  void close() override {
    if (next_ != Next::ignored || --ignored_ == 0) next_ = Next::member;
  }
  void other(const char* what) override {
    const std::string is = std::string(" is ") + what;
    switch (next_) {
      case Next::ignored:
        if (ignored_ == 0) next_ = Next::member;
        return;
      case Next::files: fail(std::string(kFiles) + is + ", not an object");
      case Next::file: fail("the file of tensor " + in_quotes(at_->first, '"') + is + ", not a string");
      default: fail(std::string("it") + is + ", not an object");
    }
  }

  void ignore() {
    if (++ignored_ > kDeepest) fail("is nested deeper than " + std::to_string(kDeepest) + " levels");
  }
  void require_inside(const std::string& file) const {
    const fs::path path(file);
    const bool above = std::ranges::any_of(path, [](const fs::path& part) { return part == ".."; });
    if (!path.has_filename() || path.filename() == "." || above || path.is_absolute() ||
        file.find('\0') != std::string::npos)
      fail("the file of tensor " + in_quotes(at_->first, '"') + " is " + in_quotes(file, '"') +
           ", which is no file of the index's folder");
  }

  SafetensorsFiles& files_;
  Next next_ = Next::index;
  bool seen_ = false;
  SafetensorsFiles::iterator at_;  // of the last tensor
  int ignored_ = 0;                // objects and lists that are open and say nothing
};

}  // namespace

std::string write_safetensors_index(const SafetensorsFiles& files, std::int64_t bytes) try {
  const nlohmann::json index{{"metadata", {{"total_size", bytes}}}, {kFiles, files}};
  return index.dump(2) + "\n";
} catch (const nlohmann::json::exception&) {
  throw CheckpointError("an index cannot be written: a name in it is not UTF-8");
}

SafetensorsFiles read_safetensors_index(std::string_view text, const std::string& source) {
  SafetensorsFiles files;
  IndexEvents events(shown(source), files);
  events.read(text);
  events.finish();
  return files;
}

SafetensorsFolder::SafetensorsFolder(const std::string& path) {
  const fs::path given(path);
  std::error_code ignored;
  if (!fs::is_directory(given, ignored)) {
    if (given.extension() == ".json") {
      add_index(given);
    } else {
      add_file(given);
    }
  } else if (fs::exists(given / kSafetensorsModel, ignored)) {
    add_file(given / kSafetensorsModel);
  } else if (fs::exists(given / kSafetensorsIndex, ignored)) {
    add_index(given / kSafetensorsIndex);
  } else {
    throw CheckpointError("the folder " + in_quotes(path) + " has neither " + std::string(kSafetensorsModel) + " nor " +
                          std::string(kSafetensorsIndex));
  }
}

void SafetensorsFolder::add_file(const std::string& path) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const TensorEntry& entry : file.entries()) tensors_.emplace(entry.name, Tensor{&file, &entry});
}

void SafetensorsFolder::add_index(const std::string& path) {
  const MappedFile index(path);
  const std::string_view text(index.bytes().data(), index.bytes().size());
  if (index.size() > kMostSafetensorsHeader)
    throw CheckpointError("cannot read " + in_quotes(path) + ": an index of " + std::to_string(index.size()) +
                          " bytes is longer than the header of any file");
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [tensor, name] : read_safetensors_index(text, path)) {
    const SafetensorsFile*& file = opened[name];
    if (!file) file = &files_.emplace_back((fs::path(path).parent_path() / name).string());
    const TensorEntry* const entry = file->find(tensor);
    if (!entry)
      throw CheckpointError(shown(path) + ": tensor " + in_quotes(tensor, '"') + " should be in " +
                            in_quotes(name, '"') + ", but is not");
    tensors_.emplace(tensor, Tensor{file, entry});
  }
}

}  // namespace zero

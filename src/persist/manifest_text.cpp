// manifest.json, written.
#include <bit>
#include <cmath>

#include "persist/json_node.h"
#include "persist/manifest.h"
#include "persist/manifest_words.h"

namespace zero {
namespace {

// Numbers that are finite come back to the bit; of the others JSON has none.
std::string json_number(double value) {
  if (!std::isfinite(value)) return json_string(bits_text(value));
  return Json(value).dump();
}

// "[a, b, c]"
std::string json_list(const auto& values, auto&& text) {
  std::vector<std::string> words;
  for (const auto& value : values) words.push_back(text(value));
  return "[" + joined(words) + "]";
}

// One a line, `indent` from the margin.
std::string json_lines(const auto& values, const std::string& indent, auto&& text) {
  std::vector<std::string> words;
  for (const auto& value : values) words.push_back("\n" + indent + text(value));
  return "[" + joined(words, ",") + "]";
}

// {"name": value, ...} of a map.
std::string json_map(const auto& map, auto&& text) {
  std::vector<std::string> words;
  for (const auto& [key, value] : map) words.push_back(json_string(key) + ": " + text(value));
  return "{" + joined(words) + "}";
}

std::string member(const std::string& key, std::int64_t value) {
  return "\"" + key + "\": " + std::to_string(value);
}
std::string member(const std::string& key, const std::string& value) {
  return "\"" + key + "\": " + json_string(value);
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return "\"shape\": " + listed(shape);
}

std::string stored_text(const StoredBytes& at) {
  return member("file", static_cast<std::int64_t>(at.file)) + ", " + member("offset", at.offset) + ", " +
         member("bytes", at.bytes) + ", " + member("xxh3", text_of(at.checksum));
}

std::string run_text(const ElementRun& run) {
  if (run.times == 1) return listed(std::vector{run.begin, run.end()});
  return listed(std::vector{run.begin, run.begin + run.length, run.step, run.times});
}

std::string piece_text(const StoredPiece& piece) {
  return "{" + stored_text(piece.at) + ", \"elements\": " + json_list(piece.elements, run_text) + "}";
}

std::string file_text(const StoredFile& file) {
  return "{" + member("name", file.name) + ", " + member("bytes", file.bytes) + ", " +
         member("header_bytes", file.header_bytes) + ", " + member("header_xxh3", text_of(file.header)) + "}";
}

std::string tensor_text(const StoredTensor& stored) {
  const StateTensor& tensor = stored.tensor;
  std::string text = "{" + member("name", tensor.key.name) + ", " + member("kind", std::string(name(tensor.key.kind))) +
                     ", " + member("part", tensor.key.part) + ", " + member("dtype", std::string(name(tensor.dtype))) +
                     ", " + shape_text(tensor.shape);
  if (const auto& blocks = tensor.blocks)
    text += ", \"blocks\": {" + member("size", blocks->size) + ", " + member("before", blocks->before) +
            ", \"order\": " + listed(blocks->order) + "}";
  return text + ", \"pieces\": " + json_lines(stored.pieces, "    ", piece_text) + "}";
}

std::string user_tensor_text(const StoredUserTensor& tensor) {
  return "{" + member("name", tensor.name) + ", " + member("dtype", std::string(name(tensor.dtype))) + ", " +
         shape_text(tensor.shape) + ", \"pieces\": " +
         json_lines(tensor.pieces, "    ", [](const StoredBytes& at) { return "{" + stored_text(at) + "}"; }) + "}";
}

std::string mesh_text(const MeshShape& mesh) {
  std::vector<std::string> words;
  for (int axis = 0; axis < kAxes; ++axis)
    words.push_back(member(std::string(name(static_cast<Axis>(axis))), mesh.size(static_cast<Axis>(axis))));
  return "{" + joined(words) + "}";
}

std::string scalars_text(const StateScalars& scalars) {
  const auto numbers = [](const std::vector<double>& values) { return json_list(values, json_number); };
  std::string text =
      "{" + member("steps", scalars.steps) + ", " + member("skipped_steps", scalars.skipped_steps) + ", " +
      member("micro_batches", scalars.micro_batches) + ", \"seed\": " + std::to_string(scalars.seed) +
      ",\n  \"updates\": " + json_map(scalars.updates, [](std::int64_t count) { return std::to_string(count); }) +
      ",\n  \"optimizers\": " + json_map(scalars.optimizers, json_string);
  if (const auto& scaler = scalars.loss_scaler)
    text += ",\n  \"loss_scaler\": {\"value\": " + json_number(scaler->value) + ", " +
            member("clean_steps", scaler->clean_steps) + ", " + member("overflows_left", scaler->overflows_left) + "}";
  return text + ",\n  \"float8\": " +
         json_map(scalars.float8,
                  [&](const StateScalars::Float8History& history) {
                    return "{\"inputs\": " + numbers(history.inputs) +
                           ", \"gradients\": " + numbers(history.gradients) + "}";
                  }) +
         "}";
}

}  // namespace

std::string describe(const StoredUserTensor& tensor) {
  return tensor.name + " of the program";
}

std::string library_version() {
  return ZERO_VERSION;
}

std::string to_text(const Manifest& manifest) {
  std::string text = "{\n " + member("schema", std::string(kManifestSchema)) + ",\n " +
                     member("version", manifest.library) + ",\n " + member("plan", manifest.plan) + ",\n " +
                     member("ranks", manifest.mesh.size()) + ",\n \"mesh\": " + mesh_text(manifest.mesh) +
                     ",\n \"scalars\": " + scalars_text(manifest.scalars) + ",\n " + member("user", manifest.user) +
                     ",\n \"files\": " + json_lines(manifest.files, "  ", file_text) +
                     ",\n \"tensors\": " + json_lines(manifest.tensors, "  ", tensor_text) +
                     ",\n \"user_tensors\": " + json_lines(manifest.user_tensors, "  ", user_tensor_text);
  return text + checksum_member(text);
}

std::string to_text(const RankPart& part) {
  const auto piece = [](const std::pair<std::size_t, StoredPiece>& each) {
    return "{" + member("tensor", static_cast<std::int64_t>(each.first)) + ", \"piece\": " + piece_text(each.second) +
           "}";
  };
  return "{\"file\": " + file_text(part.file) + ", \"pieces\": " + json_list(part.pieces, piece) +
         ", \"user_tensors\": " + json_list(part.user_tensors, user_tensor_text) + "}";
}

}  // namespace zero

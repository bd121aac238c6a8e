// zero checkpoint show.
#include <algorithm>
#include <iostream>
#include <map>

#include "base/text.h"
#include "cli/commands/checkpoint_command.h"
#include "cli/report/format.h"
#include "cli/report/report.h"
#include "persist/checkpoint_list.h"
#include "persist/tensor_tree.h"
#include "zero/plan.h"

namespace cli {
namespace {

using models::Json;
using zero::Manifest;
using zero::StateKind;
using zero::StateScalars;
using zero::StateTensor;
using zero::StoredUserTensor;
using zero::TensorTree;

struct Sum {
  std::int64_t tensors = 0, elements = 0, bytes = 0;
  void add(std::int64_t more, std::int64_t size) {
    ++tensors;
    elements += more;
    bytes += more * size;
  }
};

StateTensor plain(const StoredUserTensor& tensor) {
  return {.key = {tensor.name}, .dtype = tensor.dtype, .shape = tensor.shape};
}

// With the program's own tensors last.
std::vector<std::pair<std::string, Sum>> sums_of(const Manifest& manifest) {
  std::map<StateKind, Sum> by_kind;
  for (const auto& [tensor, pieces] : manifest.tensors)
    by_kind[tensor.key.kind].add(tensor.numel(), size_of(tensor.dtype));
  std::vector<std::pair<std::string, Sum>> sums;
  for (const auto& [kind, sum] : by_kind) sums.emplace_back(name(kind), sum);
  Sum users;
  for (const StoredUserTensor& each : manifest.user_tensors) users.add(plain(each).numel(), size_of(each.dtype));
  if (users.tensors > 0) sums.emplace_back("of the program", users);
  return sums;
}

// A plan's words end with its precision.
std::string precision_of(const std::string& plan) {
  const std::string last = plan.substr(plan.find_last_of(' ') + 1);
  return std::ranges::count(zero::precisions(), last) ? last : std::string();
}

std::vector<StateTensor> tensors_of(const Manifest& manifest) {
  std::vector<StateTensor> tensors;
  for (const auto& [tensor, pieces] : manifest.tensors) tensors.push_back(tensor);
  return tensors;
}

std::string state_of(const StateTensor& tensor) {
  return std::string(name(tensor.key.kind)) + (tensor.key.part.empty() ? "" : " " + zero::escaped(tensor.key.part));
}

void add_tensor(Table& table, const std::string& head, const std::string& kind, const StateTensor& tensor) {
  table.add({head, kind, std::string(name(tensor.dtype)), zero::listed(tensor.shape),
             with_separators(zero::bytes_of(tensor))});
}

void add_tree(Table& table, const TensorTree& tree, const std::string& indent) {
  for (const TensorTree& each : tree.children) {
    std::string head = indent + zero::escaped(each.name);
    if (each.alike > 1) head += " to " + zero::escaped(each.last) + ", each";
    if (each.tensors.empty()) table.add({head, "", "", "", with_separators(each.bytes)});
    for (const StateTensor* tensor : each.tensors) {
      add_tensor(table, head, state_of(*tensor), *tensor);
      head.clear();
    }
    add_tree(table, each, indent + "  ");
  }
}

// "7", or "5 to 7".
std::string updates_of(const StateScalars& scalars) {
  const auto [least, most] =
      std::ranges::minmax_element(scalars.updates, {}, [](const auto& each) { return each.second; });
  if (least == scalars.updates.end()) return "none";
  const std::string range = least->second == most->second ? "" : with_separators(least->second) + " to ";
  return range + with_separators(most->second) + ", of " +
         counted(static_cast<std::int64_t>(scalars.updates.size()), "parameter");
}

// "adamw of 12 parameters, lion of 1 parameter".
std::string optimizers_of(const StateScalars& scalars) {
  std::map<std::string, std::int64_t> parameters;
  for (const auto& [parameter, optimizer] : scalars.optimizers) ++parameters[optimizer];
  std::vector<std::string> words;
  for (const auto& [optimizer, count] : parameters)
    words.push_back(zero::escaped(optimizer) + " of " + counted(count, "parameter"));
  return zero::joined(words);
}

void print_scalars(std::ostream& out, const StateScalars& scalars) {
  Table table(2);
  table.add({"steps", with_separators(scalars.steps)});
  table.add({"skipped steps", with_separators(scalars.skipped_steps)});
  table.add({"micro-batches", with_separators(scalars.micro_batches)});
  table.add({"seed", std::to_string(scalars.seed)});
  table.add({"updates", updates_of(scalars)});
  if (!scalars.optimizers.empty()) table.add({"optimizer", optimizers_of(scalars)});
  if (const auto& scaler = scalars.loss_scaler)
    table.add({"loss scale", shortest(scaler->value) + ", " + counted(scaler->clean_steps, "clean step") + ", " +
                                 counted(scaler->overflows_left, "overflow") + " until it is lowered"});
  if (!scalars.float8.empty())
    table.add({"FP8 histories", "of " + counted(static_cast<std::int64_t>(scalars.float8.size()), "parameter")});
  table.print(out);
}

void print_files(std::ostream& out, const Manifest& manifest, std::int64_t manifest_bytes) {
  Table table(1);
  table.add({"file", "bytes"});
  for (const zero::StoredFile& file : manifest.files)
    table.add({zero::escaped(file.name), with_separators(file.bytes)});
  table.add({std::string(zero::kManifest), with_separators(manifest_bytes)});
  table.print(out);
}

void print_sums(std::ostream& out, const Manifest& manifest) {
  Table table(1);
  table.add({"state", "tensors", "elements", "bytes"});
  Sum all;
  for (const auto& [kind, sum] : sums_of(manifest)) {
    table.add({kind, with_separators(sum.tensors), with_separators(sum.elements), with_separators(sum.bytes)});
    all.tensors += sum.tensors, all.elements += sum.elements, all.bytes += sum.bytes;
  }
  table.add({"all", with_separators(all.tensors), with_separators(all.elements), with_separators(all.bytes)});
  table.print(out);
}

void print_tensors(std::ostream& out, const Manifest& manifest, bool all) {
  const std::vector<StateTensor> tensors = tensors_of(manifest);
  Table table(4);
  table.add({"tensor", "state", "dtype", "shape", "bytes"});
  add_tree(table, zero::tensor_tree(tensors, all ? zero::Layers::all : zero::Layers::alike_as_one), "");
  for (const StoredUserTensor& each : manifest.user_tensors)
    add_tensor(table, zero::escaped(each.name), "of the program", plain(each));
  table.print(out);
}

void print(std::ostream& out, const zero::Checkpoint& checkpoint, std::int64_t manifest_bytes, bool all) {
  const Manifest& manifest = checkpoint.manifest();
  out << heading(checkpoint) << "; written by libzero " << zero::escaped(manifest.library) << "\n\n";
  print_scalars(out, manifest.scalars);
  if (!manifest.user.empty()) out << "\nThe program's own: " << zero::escaped(manifest.user) << '\n';
  out << '\n';
  print_sums(out, manifest);
  out << '\n';
  print_files(out, manifest, manifest_bytes);
  out << '\n';
  print_tensors(out, manifest, all);
}

Json json_of(const StateTensor& tensor) {
  return {{"name", tensor.key.name},     {"kind", name(tensor.key.kind)}, {"part", tensor.key.part},
          {"dtype", name(tensor.dtype)}, {"shape", tensor.shape},         {"bytes", zero::bytes_of(tensor)}};
}

Json json_of(const StateScalars& scalars) {
  Json json{{"steps", scalars.steps},
            {"skipped_steps", scalars.skipped_steps},
            {"micro_batches", scalars.micro_batches},
            {"seed", scalars.seed},
            {"updates", scalars.updates},
            {"optimizers", scalars.optimizers},
            {"loss_scaler", nullptr},
            {"float8", Json::object()}};
  if (const auto& scaler = scalars.loss_scaler)
    json["loss_scaler"] = {
        {"value", scaler->value}, {"clean_steps", scaler->clean_steps}, {"overflows_left", scaler->overflows_left}};
  for (const auto& [parameter, history] : scalars.float8)
    json["float8"][parameter] = {{"inputs", history.inputs}, {"gradients", history.gradients}};
  return json;
}

Json json_of(const zero::Checkpoint& checkpoint, std::int64_t manifest_bytes) {
  const Manifest& manifest = checkpoint.manifest();
  const std::string precision = precision_of(manifest.plan);
  Json json = models::stamped(models::kCheckpointShow);
  json["folder"] = checkpoint.folder();
  json["step"] = manifest.scalars.steps;
  json["plan"] = manifest.plan;
  json["precision"] = precision.empty() ? Json() : Json(precision);
  json["ranks"] = manifest.mesh.size();
  for (int axis = 0; axis < zero::kAxes; ++axis)
    json["mesh"][std::string(name(static_cast<zero::Axis>(axis)))] = manifest.mesh.size(static_cast<zero::Axis>(axis));
  json["written_by"] = manifest.library;
  json["scalars"] = json_of(manifest.scalars);
  json["user"] = manifest.user.empty() ? Json() : Json(manifest.user);
  for (const char* list : {"states", "files", "tensors", "user_tensors"}) json[list] = Json::array();
  for (const auto& [kind, sum] : sums_of(manifest))
    json["states"].push_back(
        {{"state", kind}, {"tensors", sum.tensors}, {"elements", sum.elements}, {"bytes", sum.bytes}});
  for (const zero::StoredFile& file : manifest.files)
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  json["files"].push_back({{"name", zero::kManifest}, {"bytes", manifest_bytes}});
  for (const auto& [tensor, pieces] : manifest.tensors) json["tensors"].push_back(json_of(tensor));
  for (const StoredUserTensor& each : manifest.user_tensors)
    json["user_tensors"].push_back({{"name", each.name},
                                    {"dtype", name(each.dtype)},
                                    {"shape", each.shape},
                                    {"bytes", zero::bytes_of(plain(each))}});
  return json;
}

}  // namespace

int show_checkpoint(const CheckpointOptions& options) {
  check_output(options);
  const zero::Checkpoint checkpoint = open_checkpoint(options.path);
  const std::int64_t manifest_bytes =
      zero::posix_env().open(checkpoint.folder() + "/" + std::string(zero::kManifest))->size();
  if (std::ostream* const out = text_of(options)) print(*out, checkpoint, manifest_bytes, options.all);
  write_json(options, json_of(checkpoint, manifest_bytes));
  return 0;
}

}  // namespace cli

// zero checkpoint diff.
#include "persist/checkpoint_diff.h"

#include <iostream>

#include "base/text.h"
#include "cli/commands/checkpoint_command.h"
#include "cli/report/format.h"
#include "cli/report/progress.h"
#include "cli/report/report.h"
#include "persist/checkpoint_list.h"
#include "zero/error.h"

namespace cli {
namespace {

using models::Json;
using zero::CheckpointDifferences;
using zero::FormDifference;
using zero::ScalarDifference;
using zero::ValueDifference;

void print_forms(std::ostream& out, const CheckpointDifferences& found) {
  for (const FormDifference& each : found.forms) {
    const std::string name = zero::escaped(each.tensor);
    if (each.b.empty()) {
      out << "only in A: " << name << ", " << each.a << '\n';
    } else if (each.a.empty()) {
      out << "only in B: " << name << ", " << each.b << '\n';
    } else {
      out << "another form: " << name << ", " << each.a << " in A, " << each.b << " in B\n";
    }
  }
  if (!found.forms.empty()) out << '\n';
}

void print_values(std::ostream& out, const CheckpointDifferences& found) {
  if (found.values.empty()) return;
  Table table(1);
  table.add({"values differ", "elements", "of", "NaN in one", "largest difference", "at"});
  for (const ValueDifference& each : found.values) {
    const bool somewhere = each.differ > each.nan;
    table.add({zero::escaped(each.tensor), with_separators(each.differ), with_separators(each.elements),
               with_separators(each.nan), somewhere ? significant(each.largest, 6) : "-",
               somewhere ? zero::listed(each.at) : "-"});
  }
  table.print(out);
  out << '\n';
}

void print_scalars(std::ostream& out, const CheckpointDifferences& found) {
  if (found.scalars.empty()) return;
  const auto shown = [](const std::string& text) { return text.empty() ? std::string("-") : zero::shown(text); };
  Table table(3);
  table.add({"scalars differ", "A", "B"});
  for (const ScalarDifference& each : found.scalars)
    table.add({zero::escaped(each.name), shown(each.a), shown(each.b)});
  table.print(out);
  out << '\n';
}

void print(std::ostream& out, const zero::Checkpoint& a, const zero::Checkpoint& b,
           const CheckpointDifferences& found) {
  out << "A  " << heading(a) << "\nB  " << heading(b) << "\n\n";
  print_forms(out, found);
  print_values(out, found);
  print_scalars(out, found);
  const std::string compared =
      counted(found.tensors, "tensor") + " of " + counted(found.elements, "element") + " compared";
  out << (found.none() ? "They are equal: " : "They differ: ") << compared;
  if (!found.none())
    out << ", " << with_separators(static_cast<std::int64_t>(found.values.size())) << " with other values; "
        << with_separators(static_cast<std::int64_t>(found.forms.size())) << " in one only or of another form; "
        << counted(static_cast<std::int64_t>(found.scalars.size()), "other scalar");
  out << ".\n";
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json json_of(const zero::Checkpoint& a, const zero::Checkpoint& b, const CheckpointDifferences& found) {
  Json json = models::stamped(models::kCheckpointDiff);
  json["a"] = a.folder();
  json["b"] = b.folder();
  json["equal"] = found.none();
  json["tensors"] = found.tensors;
  json["elements"] = found.elements;
  json["forms"] = json["values"] = json["scalars"] = Json::array();
  for (const FormDifference& each : found.forms)
    json["forms"].push_back({{"tensor", each.tensor}, {"a", text_or_null(each.a)}, {"b", text_or_null(each.b)}});
  for (const ValueDifference& each : found.values) {
    const bool somewhere = each.differ > each.nan;
    json["values"].push_back({{"tensor", each.tensor},
                              {"elements", each.elements},
                              {"differ", each.differ},
                              {"nan", each.nan},
                              {"largest", somewhere ? Json(each.largest) : Json()},
                              {"at", somewhere ? Json(each.at) : Json()}});
  }
  for (const ScalarDifference& each : found.scalars)
    json["scalars"].push_back({{"name", each.name}, {"a", text_or_null(each.a)}, {"b", text_or_null(each.b)}});
  return json;
}

// As diff(1) does it: 1 is for a difference, and so what is damaged is an error of what was given.
CheckpointDifferences found_in(const zero::Checkpoint& a, const zero::Checkpoint& b) try {
  ByteProgress progress("checkpoint diff", zero::bytes_of(a.manifest()) + zero::bytes_of(b.manifest()));
  progress.begin("compared");
  return zero::differences(zero::posix_env(), a, b, [&](std::int64_t bytes) { progress.add(bytes); });
} catch (const zero::CheckpointError& error) {
  throw zero::ConfigError(error.what());
}

}  // namespace

int diff_checkpoints(const CheckpointOptions& options) {
  check_output(options);
  const zero::Checkpoint a = open_checkpoint(options.path), b = open_checkpoint(options.other);
  const CheckpointDifferences found = found_in(a, b);
  if (std::ostream* const out = text_of(options)) print(*out, a, b, found);
  write_json(options, json_of(a, b, found));
  return found.none() ? 0 : 1;
}

}  // namespace cli

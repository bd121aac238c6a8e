// zero checkpoint verify.
#include <iostream>

#include "base/text.h"
#include "cli/commands/checkpoint_command.h"
#include "cli/report/format.h"
#include "cli/report/progress.h"
#include "persist/checkpoint_list.h"
#include "zero/error.h"

namespace cli {
namespace {

using models::Json;
using zero::CheckpointFault;

// What verifying it reads; 0 where that cannot be known.
std::int64_t bytes_to_read(const std::string& folder) {
  try {
    return zero::bytes_of(zero::Checkpoint::open(zero::posix_env(), folder).manifest());
  } catch (const zero::CheckpointError&) {
    return 0;
  }
}

Json to_json(const CheckpointFault& fault) {
  const bool somewhere = fault.end > fault.begin;
  return {{"file", fault.file},
          {"tensor", fault.tensor.empty() ? Json() : Json(fault.tensor)},
          {"begin", somewhere ? Json(fault.begin) : Json()},
          {"end", somewhere ? Json(fault.end) : Json()},
          {"what", fault.what}};
}

void print(std::ostream& out, const std::string& folder, std::int64_t bytes,
           const std::vector<CheckpointFault>& faults) {
  if (faults.empty()) out << zero::escaped(folder) << ": whole, " << counted(bytes, "byte") << '\n';
  for (const CheckpointFault& fault : faults) out << zero::escaped(folder + "/" + zero::describe(fault)) << '\n';
  out << std::flush;
}

}  // namespace

int verify_checkpoints(const CheckpointOptions& options) {
  check_output(options);
  std::vector<std::pair<std::string, std::int64_t>> folders;
  std::int64_t all = 0;
  for (const std::string& folder : zero::checkpoints_at(zero::posix_env(), options.path)) {
    folders.emplace_back(folder, bytes_to_read(folder));
    all += folders.back().second;
  }
  std::ostream* const out = text_of(options);
  Json json = models::stamped(models::kCheckpointVerify);
  json["whole"] = true;
  json["checkpoints"] = Json::array();
  std::int64_t damaged = 0;
  ByteProgress progress("checkpoint verify", all);
  for (const auto& [folder, bytes] : folders) {
    progress.begin(zero::escaped(folder));
    const auto faults = zero::verify(zero::posix_env(), folder, [&](std::int64_t more) { progress.add(more); });
    progress.clear();
    if (out) print(*out, folder, bytes, faults);
    Json each{{"folder", folder}, {"bytes", bytes}, {"whole", faults.empty()}, {"faults", Json::array()}};
    for (const CheckpointFault& fault : faults) each["faults"].push_back(to_json(fault));
    json["checkpoints"].push_back(std::move(each));
    damaged += faults.empty() ? 0 : 1;
  }
  json["whole"] = damaged == 0;
  if (out && damaged > 0)
    *out << with_separators(damaged) << " of " << counted(static_cast<std::int64_t>(folders.size()), "checkpoint")
         << (damaged == 1 ? " is" : " are") << " damaged.\n";
  write_json(options, json);
  return damaged > 0 ? 1 : 0;
}

}  // namespace cli

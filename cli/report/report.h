// What runs cost and gave: as values, JSON and tables. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files.h"
#include "cli/report/table.h"
#include "models/json.h"
#include "planner/theory.h"

namespace cli {

inline constexpr std::int64_t kUnmeasured = -1;

struct Bytes {
  std::int64_t predicted = 0;
  std::int64_t measured = 0;
  bool agree() const { return predicted == measured; }
};

// What a rank receives in a step in codes of a state: parameters, which are gathered, or gradients, which are added up.
struct CodedBytes {
  std::string state, codec;
  Bytes within_host = {}, across_hosts = {};
  bool agree() const { return within_host.agree() && across_hosts.agree(); }
};

// What a rank receives in a step, as the transport counts it.
struct WireBytes {
  std::int64_t predicted = 0;
  std::int64_t measured = 0;  // the mean of steps; 0: of none
  bool uneven = false;        // not all of them received as much
  Bytes within_host = {}, across_hosts = {};
  Bytes in_place = {};                 // within the host: read where it lies in common memory, so that nothing moved
  std::vector<CodedBytes> codes = {};  // of all that
  bool agree() const {
    return predicted == measured && !uneven && within_host.agree() && across_hosts.agree() && in_place.agree() &&
           std::ranges::all_of(codes, &CodedBytes::agree);
  }
  // False where no step was like the others: after the first, all were skipped, or followed one that was.
  bool known() const { return measured > 0 || predicted == 0; }
};

// What a rank keeps of a state on a tier that is not its device's, and moves to and from there in a step.
struct TierBytes {
  std::string tier, state;
  Bytes held = {};
  Bytes read = {}, written = {};  // measured: the mean of steps; kUnmeasured: of none
  bool uneven = false;            // not all of them moved as much
  bool agree() const {
    const auto moved = [](const Bytes& bytes) { return bytes.measured == kUnmeasured || bytes.agree(); };
    return held.agree() && moved(read) && moved(written) && !uneven;
  }
};

struct Evaluation {
  std::int64_t step = 0;
  double loss = 0;
};

// Of a step, of the thread that trains; the middle one of the steps. A device's work is queued by the thread, which
// waits for it before the vote.
struct Seconds {
  double compute = 0;
  double gather = 0;  // waiting for parameters
  double reduce = 0;  // waiting for reductions
  double update = 0;
  double wait = 0;  // for the slowest rank, in the vote
};

struct Share {
  std::string name;
  std::int64_t bytes = 0;
};

// What an activation budget has done, of the last micro-batch of the first rank: zero/activation_report.h.
struct BudgetUse {
  std::int64_t budget = 0, unlimited = 0, peak = 0;  // bytes
  std::int64_t planned = 0;                          // bytes that the plan foretold; 0: it went by none
  std::int64_t operators = 0, again = 0;             // that ran; of these once more
  double share = 0;                                  // foretold: of the operators' time
  bool empty() const { return budget == 0; }
};

struct RunResult {
  std::string plan;
  std::string optimizer_name;
  double lr = 0;  // the highest
  std::string precision;
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<Evaluation> evaluations;
  Bytes parameter, gradient, optimizer;               // per rank
  std::vector<TierBytes> tiers;                       // per rank; empty: all is on the device
  WireBytes wire;                                     // per rank
  Bytes tensor_wire;                                  // along the tensor axis, received by a rank in a step
  models::Json collectives = models::Json::object();  // bytes of `wire` by collective, as measured
  // Per rank, at their largest. Activations, and with them the peak, are measured on a device in a step with a timeline
  // only, there at the peak, and not where LibTorch's allocator was left in place (ZERO_ARENA=0).
  Bytes activation, buffers, peak;
  BudgetUse recomputation;
  std::string moment;                    // of the predicted peak
  std::int64_t steps_made = 0;           // by the run itself; 0: none was left, and so little is measured
  std::int64_t peak_bytes = 0;           // the largest resident size of a rank's process while the run went on
  std::vector<Share> process;            // what the first rank's process holds after its last step; see --timeline
  std::int64_t process_bytes = 0;        // all of it, as the kernel counts it
  std::int64_t update_bytes = 0;         // per rank, that a step's update reads and writes
  std::optional<double> update_seconds;  // none: no step was applied
  double step_seconds = 0;
  std::optional<double> predicted_seconds;  // of a step; none without a profile of the machine
  std::string profile;                      // by which they are predicted
  bool profile_estimated = false;           // nothing of it was measured
  Seconds seconds;
  double tokens_per_second = 0;
  planner::Theory theory;
  models::Json timeline;  // of memory and activities within a step; null: not recorded
  // Not in the JSON.
  std::int64_t snapshot = 0;  // what a save behind training adds to the predicted peak
  bool stopped = false;       // before the last step, as it was asked to
  bool unsaved = false;       // the last step's state could not be saved

  bool bytes_agree() const {
    return parameter.agree() && gradient.agree() && optimizer.agree() && (wire.agree() || !wire.known()) &&
           std::ranges::all_of(tiers, &TierBytes::agree);
  }
};

struct Report {
  int ranks = 1;
  std::int64_t parameters = 0;
  std::string precision;  // empty: not the same in all runs
  std::vector<RunResult> runs;
  std::string model;
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  int accumulate = 1;
  std::string command;
  models::Json setting = models::Json::object();  // see setting_of()
};

// Doubles are printed so that reading them gives the same bits.
std::string to_json(const Report& report);
// Throws zero::ConfigError for a report of a newer program.
std::vector<RunResult> runs_from_json(const std::string& text);

// Bytes and costs of each run, in tables.
void print_report(std::ostream& out, const Report& report);
// Likewise of runs under one plan, a row for each optimizer and precision. `held`: the parameters whose state a rank
// keeps, on average.
void print_optimizers(std::ostream& out, const Report& report, double held);

// `losses` of a run differ from those of the first run of its group from step `step` (from 1) on.
struct Difference {
  std::string plan;
  std::string from;
  std::size_t step = 0;
};
// Bit by bit. groups[i] is the group of runs[i].
std::vector<Difference> differences(const Report& report, const std::vector<int>& groups);

}  // namespace cli

#include "cli/training/outputs.h"

#include <algorithm>
#include <array>
#include <iostream>

#include "cli/complain.h"
#include "cli/page/page.h"
#include "cli/report/trace.h"

namespace cli {

void write_outputs(const RunOptions& options, const Report& report) {
  const std::string json = to_json(report);
  if (!options.json.empty()) write_file(options.json, json);
  const auto recorded = [](const RunResult& run) { return !run.timeline.empty(); };
  if (options.html.empty() && options.trace.empty()) return;
  if (!std::ranges::all_of(report.runs, recorded))
    return complain("--html and --trace are not written: the last step, which they show, was not made");
  if (!options.html.empty()) write_file(options.html, report_page(json));
  if (!options.trace.empty()) write_file(options.trace, chrome_trace(json));
}

std::ostream& text_of(const RunOptions& options) {
  const std::array outputs{options.json, options.html, options.trace};
  return std::ranges::any_of(outputs, is_standard_output) ? std::cerr : std::cout;
}

bool says_all_skipped(const RunResult& run) {
  if (run.update_seconds || run.steps_made == 0) return false;
  complain(run.plan +
           ": every step was skipped, since no gradient was finite: give a smaller --lr or --loss-scale, or "
           "another --precision");
  return true;
}

}  // namespace cli

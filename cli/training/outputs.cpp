#include "outputs.h"

#include <filesystem>

#include "page.h"
#include "trace.h"

namespace cli {

void check_outputs(const RunOptions& options) {
  for (const std::string& path : {options.json, options.html, options.trace})
    if (!path.empty()) check_writable(path);
  if (options.tensorboard.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.tensorboard, error);
  if (error) throw zero::Error("cannot make the folder '" + options.tensorboard + "': " + error.message());
}

void write_outputs(const RunOptions& options, const Report& report) {
  const std::string json = to_json(report);
  if (!options.json.empty()) write_file(options.json, json);
  if (!options.html.empty()) write_file(options.html, report_page(json));
  if (!options.trace.empty()) write_file(options.trace, chrome_trace(json));
}

}  // namespace cli

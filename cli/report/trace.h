// A report's timelines in Chrome's trace event format, which Perfetto and chrome://tracing open. No torch.
#pragma once

#include <string>

namespace cli {

// `json` is a report with a "timeline" in at least one run. A run is a process; its phases and each of its threads are
// rows of complete events, the bytes of each owner a counter. Runs begin together, at 0; times are in microseconds.
// Throws zero::Error when there is no timeline, or one that cannot be read.
std::string chrome_trace(const std::string& json);

}  // namespace cli

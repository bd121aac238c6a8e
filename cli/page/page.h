// One HTML page that shows a report: data, style and script in it, nothing from elsewhere. No torch.
#pragma once

#include <string>

namespace cli {

// `json` is a report as to_json() writes it. Members that only some runs have may be absent: what would show them is
// left out.
std::string report_page(const std::string& json);

}  // namespace cli

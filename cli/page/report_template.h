// The page without its data: report_page.html with its style and scripts, put together by the build.
#pragma once

#include <string_view>

namespace cli {

std::string_view report_template();

}  // namespace cli

#include "cli/page/page.h"

#include <string_view>

#include "cli/page/report_template.h"

namespace cli {
namespace {

// JSON has "<" in strings only, where its escape means the same. Without it, no text ends the script element that the
// JSON stands in.
std::string without_tags(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) c == '<' ? text += "\\u003c" : text += c;
  return text;
}

}  // namespace

std::string report_page(const std::string& json) {
  constexpr std::string_view open = R"(<script type="application/json" id="data">)";
  std::string page(report_template());
  const std::size_t begin = page.find(open) + open.size();
  return page.replace(begin, page.find("</script>", begin) - begin, without_tags(json));
}

}  // namespace cli

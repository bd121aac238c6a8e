// The report's page, as text. What it shows is tested in a browser, see tests/report.
#include "cli/page/page.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace cli::page_test {

using Json = nlohmann::ordered_json;

// The text of the page's element for data.
std::string data_of(const std::string& page) {
  const std::string open = R"(<script type="application/json" id="data">)";
  const std::size_t begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script>", begin) - begin);
}

std::size_t occurrences(const std::string& page, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = page.find(text); at != std::string::npos; at = page.find(text, at + 1)) ++count;
  return count;
}

TEST(ReportPage, CarriesTheReportAsItIs) {
  const Json report{{"ranks", 4}, {"command", "zero compare"}, {"runs", {{{"losses", {0.1, nullptr, 1e300}}}}}};
  EXPECT_EQ(Json::parse(data_of(report_page(report.dump(2)))), report);
}

TEST(ReportPage, NoTextOfTheReportEndsItsElement) {
  const Json report{{"command", "</script><script>alert(1)</script><!-- <script>"}, {"runs", Json::array()}};
  const std::string page = report_page(report.dump());
  EXPECT_EQ(data_of(page).find('<'), std::string::npos);
  EXPECT_EQ(Json::parse(data_of(page)), report);
  EXPECT_EQ(occurrences(page, "</script>"), occurrences(report_page("{}"), "</script>"));
}

// With single spaces.
std::string words_of(const std::string& text) {
  std::istringstream in(text);
  std::string words;
  for (std::string word; in >> word;) words += (words.empty() ? "" : " ") + word;
  return words;
}

TEST(ReportPage, SaysOfTheWireWhatTheReadmeSays) {
  const std::string who =
      "The transport counts bytes where they arrive: received, copied from a peer or read in its memory;";
  std::ostringstream readme;
  readme << std::ifstream(ZERO_SOURCE_DIR "/README.md").rdbuf();
  for (const std::string& text : {readme.str(), report_page("{}")})
    EXPECT_NE(words_of(text).find(who), std::string::npos);
}

TEST(ReportPage, IsOneDocumentWithStyleAndScriptInIt) {
  const std::string page = report_page("{}");
  EXPECT_EQ(page.rfind("<!DOCTYPE html>", 0), 0U);
  EXPECT_EQ(page.substr(page.size() - 8), "</html>\n");
  EXPECT_EQ(occurrences(page, "@STYLE@") + occurrences(page, "@SCRIPT@"), 0U);
  EXPECT_EQ(occurrences(page, ":root {"), 2U);  // light and dark
  EXPECT_EQ(occurrences(page, "id=\"data\""), 1U);
}

TEST(ReportPage, NamesNothingElsewhere) {
  const std::string page = report_page("{}");
  for (const char* reference : {"src=", "href=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("}) {
    EXPECT_EQ(occurrences(page, reference), 0U) << reference;
  }
  EXPECT_EQ(occurrences(page, "default-src 'none'"), 1U);
}

}  // namespace cli::page_test

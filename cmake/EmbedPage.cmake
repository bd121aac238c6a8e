# cmake -DFOLDER=... -DOUTPUT=... -P EmbedPage.cmake: puts the report's page together and writes it as C++.
file(READ "${FOLDER}/report_page.html" page)
file(READ "${FOLDER}/report_page.css" style)
foreach(part _values _charts _plots "")
  file(READ "${FOLDER}/report_page${part}.js" text)
  string(APPEND script "${text}\n")
endforeach()
string(REPLACE "@STYLE@" "${style}" page "${page}")
string(REPLACE "@SCRIPT@" "${script}" page "${page}")

string(HEX "${page}" bytes)
string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${bytes}")
# A literal a line: compilers need not take longer ones, and an escape ends where its literal does.
string(REGEX REPLACE "(................................................................................)" "\\1\"\n    \"" bytes "${bytes}")
file(WRITE "${OUTPUT}" "#include \"cli/page/report_template.h\"

namespace cli {
namespace {

constexpr char page[] =
    \"${bytes}\";

}  // namespace

std::string_view report_template() {
  return {page, sizeof page - 1};
}

}  // namespace cli
")

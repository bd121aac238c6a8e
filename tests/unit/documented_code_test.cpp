// The code of documents for users is code of tests: compiled, run, and in the document as it is in the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace documented_code_test {

using Lines = std::vector<std::string>;

Lines lines_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  Lines lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Whatever a line is indented by.
Lines unindented(Lines lines) {
  for (std::string& line : lines) line.erase(0, line.find_first_not_of(' '));
  return lines;
}

// A block of a document between two lines of backquotes.
struct Block {
  std::string language;
  std::size_t place;  // its line in the document
  Lines text;

  // Without lines that begin with `other`, and without the first character of each.
  Lines without(char other) const {
    Lines left;
    for (const std::string& line : text)
      if (!line.starts_with(other)) left.push_back(line.substr(std::min<std::size_t>(line.size(), 1)));
    return left;
  }
  auto count(char first) const {
    return std::ranges::count_if(text, [first](const std::string& line) { return line.starts_with(first); });
  }
};

std::vector<Block> blocks_of(const std::string& document) {
  std::vector<Block> blocks;
  bool inside = false;
  const Lines lines = lines_of(std::filesystem::path(ZERO_SOURCE_DIR) / "docs" / document);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].starts_with("```")) {
      if (!inside) blocks.push_back({lines[i].substr(3), i + 1, {}});
      inside = !inside;
    } else if (inside) {
      blocks.back().text.push_back(lines[i]);
    }
  }
  return blocks;
}

// The tests whose programs are documented.
std::vector<Lines> programs() {
  std::vector<Lines> programs;
  for (const auto& file : std::filesystem::directory_iterator(ZERO_SOURCE_DIR "/tests/ranks"))
    if (const std::string name = file.path().filename(); name.starts_with("familiar_") || name.starts_with("recipes_"))
      programs.push_back(unindented(lines_of(file.path())));
  return programs;
}

bool is_in(const std::vector<Lines>& programs, const Lines& code) {
  const Lines wanted = unindented(code);
  return std::ranges::any_of(programs, [&](const Lines& program) {
    return std::search(program.begin(), program.end(), wanted.begin(), wanted.end()) != program.end();
  });
}

TEST(DocumentedCode, IsThatOfTests) {
  const std::vector<Lines> all = programs();
  for (const auto& [document, least] : {std::pair{"migrating.md", 17}, std::pair{"recipes.md", 17}}) {
    int found = 0;
    for (const Block& block : blocks_of(document)) {
      SCOPED_TRACE(std::string(document) + ":" + std::to_string(block.place));
      if (block.language == "cpp") {
        EXPECT_TRUE(is_in(all, block.text)) << "is in no test";
      } else if (block.language == "diff") {
        EXPECT_TRUE(is_in(all, block.without('+'))) << "what it changes is in no test";
        EXPECT_TRUE(is_in(all, block.without('-'))) << "what it makes of it is in no test";
      } else {
        continue;
      }
      ++found;
    }
    EXPECT_GE(found, least) << document;
  }
}

// Or a line for each optimizer.
TEST(DocumentedCode, ChangesTwoLinesAtMost) {
  for (const Block& block : blocks_of("migrating.md")) {
    if (block.language != "diff") continue;
    SCOPED_TRACE("migrating.md:" + std::to_string(block.place));
    const auto most =
        std::max<std::ptrdiff_t>(2, std::ranges::count_if(block.text, [](const std::string& line) {
                                   return line.starts_with('+') && line.find("zero::Engine") != std::string::npos;
                                 }));
    EXPECT_LE(block.count('+'), most);
    EXPECT_LE(block.count('-'), most);
    EXPECT_GE(block.count('+'), 1);
  }
}

TEST(DocumentedCode, IsFoundOnlyAsItIs) {
  const std::vector<Lines> program{{"int main() {", "return 0;", "}"}};
  EXPECT_TRUE(is_in(program, {"  return 0;", "}"}));
  EXPECT_FALSE(is_in(program, {"  return 1;", "}"}));
  EXPECT_FALSE(is_in(program, {"int main() {", "}"}));
}

}  // namespace documented_code_test

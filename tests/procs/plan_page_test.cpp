// The answers that docs/plan.md shows are those that its commands print.
#include <gtest/gtest.h>

#include "procs/zero_program.h"

namespace plan_page_test {

using procs::Folder;
using procs::read_all;

const std::string kSource = ZERO_SOURCE_DIR;

std::string trimmed(const std::string& text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// A command and what it prints.
using Shown = std::pair<std::string, std::string>;

std::vector<Shown> shown_on_the_page() {
  std::istringstream page(read_all(kSource + "/docs/plan.md"));
  std::vector<Shown> all;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("```")) {
      inside = line == "```console";
    } else if (inside && line.starts_with("$ ")) {
      all.emplace_back(line.substr(2), "");
    } else if (inside) {
      all.back().second += line + "\n";
    }
  }
  return all;
}

TEST(PlanPage, ShowsWhatTheCommandPrints) {
  const Folder folder;
  std::filesystem::create_directory_symlink(kSource + "/examples", folder.path("examples"));
  const std::string path = std::filesystem::path(procs::kZero).parent_path().string() + ":" + std::getenv("PATH");
  const std::vector<Shown> all = shown_on_the_page();
  EXPECT_GT(all.size(), 5U);
  for (const auto& [command, output] : all) {
    const procs::Result result = procs::run({"sh", "-c", "cd '" + folder.path("") + "' && " + command},
                                            {{"HOME", folder.path("")}, {"PATH", path}});
    EXPECT_EQ(trimmed(result.out), trimmed(output)) << command << '\n' << result.err;
  }
}

}  // namespace plan_page_test

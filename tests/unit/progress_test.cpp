#include "cli/report/progress.h"

#include <gtest/gtest.h>

#include <sstream>

namespace cli::progress_test {

TEST(Progress, IsABarThatIsWrittenOverOnATerminal) {
  std::ostringstream out;
  {
    Progress progress("bench profile", 4, Elsewhere::lines, {&out, 80, false});
    progress.show(0, "copies");
    progress.show(1, "collectives");
  }
  EXPECT_EQ(out.str(),
            "\r\033[Kbench profile [                        ] 0/4  copies"
            "\r\033[Kbench profile [======                  ] 1/4  collectives\r\033[K");
}

TEST(Progress, IsAsNarrowAsTheTerminal) {
  std::ostringstream out;
  Progress progress("bench profile", 4, Elsewhere::lines, {&out, 30, true});
  progress.show(1, "a text that is longer than the line");
  EXPECT_EQ(out.str(), "\r\033[Kbench profile 1/4  a text tha");
  progress.clear();
  EXPECT_TRUE(out.str().ends_with("\r\033[K"));
}

TEST(Progress, IsALineForEachTenthElsewhere) {
  std::ostringstream out;
  {
    Progress progress("bench profile", 40, Elsewhere::lines, {&out, 0, true});
    for (int done = 0; done < 40; ++done) progress.show(done, "model " + std::to_string(done));
  }
  std::string expected;
  for (int done = 0; done < 40; done += 4)
    expected += "bench profile " + std::to_string(done) + "/40  model " + std::to_string(done) + "\n";
  EXPECT_EQ(out.str(), expected);
}

TEST(Progress, IsNothingElsewhereUnlessAskedFor) {
  std::ostringstream out;
  Progress progress("zero3", 40, Elsewhere::nothing, {&out, 0, false});
  progress.show(1, 2.5, 100, 1 << 20);
  EXPECT_EQ(out.str(), "");
}

}  // namespace cli::progress_test

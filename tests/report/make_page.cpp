// make_page JSON HTML: writes the page of a report.
#include <fstream>
#include <iterator>

#include "cli/page/page.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::ifstream in(argv[1], std::ios::binary);
  std::ofstream out(argv[2], std::ios::binary);
  out << cli::report_page({std::istreambuf_iterator<char>(in), {}});
  return in && out.flush() ? 0 : 1;
}

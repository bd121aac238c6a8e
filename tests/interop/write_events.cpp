// write_events JSON FOLDER: the event files of a report, and one of values at the edges of their types.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>

#include "cli/report/tensorboard.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string folder = argv[2];
  std::ifstream in(argv[1], std::ios::binary);
  cli::write_events(folder + "/report", {std::istreambuf_iterator<char>(in), {}}, 1.7e9);

  cli::EventFile file(folder + "/edges");
  file.scalar("empty/steps", 0, 0, 0);
  file.scalar("empty/steps", std::numeric_limits<std::int64_t>::max(), -0.0, 1e-300);
  file.scalar("values", 1, std::numeric_limits<double>::quiet_NaN(), 1);
  file.scalar("values", 2, std::numeric_limits<double>::infinity(), 2);
  file.scalar("values", 3, 1e-40, 3);  // subnormal in single precision
  file.scalar("values", 4, 1e300, 4);  // beyond it
  file.scalar(std::string(300, 'x') + " \u03a8", 127, 1, 1);
  return in ? 0 : 1;
}

// write_events FOLDER: the event files of a run, and one of values at the edges of their types.
#include <cstdint>
#include <limits>
#include <string>

#include "cli/report/tensorboard.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  constexpr double begin = 1.7e9;
  cli::EventFile run(folder + "/run", begin);
  for (int step = 1; step <= 100; ++step) {
    run.scalar("loss", step, 1.0 / step, begin + step);
    run.scalar("grad_norm", step, 0.3 * step, begin + step);
    if (step % 10 == 0) run.scalar("evaluation/loss", step, 2.0 / step, begin + step);
  }
  run.scalar("bytes/wire", 100, 123456789, begin + 100);

  cli::EventFile file(folder + "/edges");
  file.scalar("empty/steps", 0, 0, 0);
  file.scalar("empty/steps", std::numeric_limits<std::int64_t>::max(), -0.0, 1e-300);
  file.scalar("values", 1, std::numeric_limits<double>::quiet_NaN(), 1);
  file.scalar("values", 2, std::numeric_limits<double>::infinity(), 2);
  file.scalar("values", 3, 1e-40, 3);  // subnormal in single precision
  file.scalar("values", 4, 1e300, 4);  // beyond it
  file.scalar(std::string(300, 'x') + " \u03a8", 127, 1, 1);
  return 0;
}

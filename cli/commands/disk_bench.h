// zero bench disk: the store's reading and writing beside the disk's own. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}

namespace cli {

struct DiskBenchOptions {
  std::string folder;
  std::uint64_t size = std::uint64_t{1} << 30;
  std::uint64_t block = 0;
  int depth = 0;
  int rounds = 5;
  bool checks = false;
  bool cached = false;
  bool off_pages = false;
  std::string queue = "auto";
  std::string json;  // "-" is standard output, which has nothing else then
};

CLI::App* add_disk_bench(CLI::App& bench, DiskBenchOptions& options);
int bench_disk(const DiskBenchOptions& options);

}  // namespace cli

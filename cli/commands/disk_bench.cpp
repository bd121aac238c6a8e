#include "cli/commands/disk_bench.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>

#include "base/huge_pages.h"
#include "base/text.h"
#include "cli/commands/disk_rates.h"
#include "cli/files.h"
#include "cli/options/validators.h"
#include "cli/report/format.h"
#include "cli/report/progress.h"
#include "cli/report/report.h"
#include "memory/disk_store.h"
#include "models/json.h"
#include "models/schema.h"
#include "zero/error.h"

namespace cli {
namespace {

using models::Json;

constexpr double kMebibyte = 1 << 20;

zero::DiskQueueKind queue_of(const std::string& name) {
  if (name == "io_uring") return zero::DiskQueueKind::io_uring;
  return name == "threads" ? zero::DiskQueueKind::threads : zero::DiskQueueKind::automatic;
}

// Two files lie there at once.
void check_room(const DiskBenchOptions& options) {
  const std::string& folder = options.folder;
  const auto size = static_cast<std::int64_t>(options.size);
  const std::int64_t free = zero::disk_system().free_bytes(folder);
  if (free >= 0 && free / 2 < size)
    throw zero::ConfigError("two files of " + std::to_string(size) + " bytes do not fit into " +
                                zero::in_quotes(folder) + ", which has " + std::to_string(free) + " bytes free",
                            "give a smaller --size, or another folder");
}

void print(std::ostream& out, const zero::DiskStore& store, std::int64_t size, int rounds,
           const std::vector<DiskComparison>& results) {
  out << store.describe() << '\n'
      << human_bytes(size) << " written and read, the middle of " << rounds << (rounds == 1 ? " round" : " rounds")
      << "\n\n";
  Table table(2);
  table.add({"op", "by", "block", "depth", "MiB/s", "IOPS", "p50 ms", "p95 ms", "p99 ms", "of the disk's"});
  const auto add = [&](const std::string& op, const char* by, const DiskRate& rate, const std::string& ratio) {
    table.add({op, by, human_bytes(store.block()), std::to_string(store.depth()), fixed(rate.bandwidth / kMebibyte, 1),
               fixed(rate.operations, 0), fixed(rate.p50 * 1e3, 2), fixed(rate.p95 * 1e3, 2), fixed(rate.p99 * 1e3, 2),
               ratio});
  };
  for (const DiskComparison& each : results) {
    add(each.operation, "store", each.store, fixed(each.ratio, 3));
    add(each.operation, "disk", each.disk, "");
  }
  table.print(out);
}

Json to_json(const DiskRate& rate) {
  return {{"bandwidth", rate.bandwidth},
          {"operations_per_second", rate.operations},
          {"p50_seconds", rate.p50},
          {"p95_seconds", rate.p95},
          {"p99_seconds", rate.p99}};
}

Json to_json(const DiskBenchOptions& options, const zero::DiskStore& store, std::int64_t size,
             const std::vector<DiskComparison>& results) {
  Json json = models::stamped(models::kBenchDisk);
  json["folder"] = options.folder;
  json["size"] = size;
  json["rounds"] = options.rounds;
  json["queue"] = store.queue();
  json["direct"] = store.direct();
  json["checks"] = options.checks;
  json["off_pages"] = options.off_pages;
  json["block"] = store.block();
  json["depth"] = store.depth();
  json["results"] = Json::array();
  for (const DiskComparison& each : results)
    json["results"].push_back(
        {{"op", each.operation}, {"ratio", each.ratio}, {"store", to_json(each.store)}, {"disk", to_json(each.disk)}});
  return json;
}

}  // namespace

CLI::App* add_disk_bench(CLI::App& bench, DiskBenchOptions& options) {
  CLI::App* const command = bench.add_subcommand("disk", "Measure the store on a disk beside the disk itself");
  const std::string group = "Disk";
  add_path(*command, "DIR", options.folder, "A folder on the disk; nothing is left in it", "")->required();
  add_size(*command, "--size", options.size, "Of each of the two files: 1GiB, 500MB")
      ->default_str("1GiB")
      ->group(group);
  add_size(*command, "--block", options.block, "Of an operation: 1MiB, 256KiB [measured]")
      ->default_str("")
      ->group(group);
  add_number(*command, "--depth", options.depth, "Operations under way [those of 8 MiB]", 1, 1024)
      ->default_str("")
      ->group(group);
  add_number(*command, "--rounds", options.rounds, "How often all is written and read", 1, 1000)->group(group);
  add_choice(*command, "--queue", options.queue, "How the store gives operations to the kernel",
             {"auto", "io_uring", "threads"})
      ->group(group);
  command->add_flag("--checks", options.checks, "The store checks what it reads")->group(group);
  command->add_flag("--cached", options.cached, "Through the page cache")->group(group);
  command->add_flag("--off-pages", options.off_pages, "The store's operations lie on no pages, as those of a step may")
      ->group(group);
  add_json(*command, options.json, "it");
  return command;
}

int bench_disk(const DiskBenchOptions& options) {
  if (!options.json.empty()) check_writable(options.json);
  check_room(options);
  const auto allocate = [](std::size_t bytes) { return zero::in_memory(zero::huge_page_memory(bytes)); };
  const auto nobody = [](zero::Owner, int, zero::Tier, std::int64_t) {};
  zero::AddressableStore memory(zero::Tier::device, allocate, nobody);
  zero::DiskStore store({.directories = {options.folder},
                         .checks = options.checks,
                         .block = static_cast<std::int64_t>(options.block),
                         .depth = options.depth,
                         .direct = !options.cached,
                         .queue = queue_of(options.queue)},
                        memory, nobody);
  const std::int64_t size = whole_operations(static_cast<std::int64_t>(options.size), store);
  const DiskLoad load{size, options.rounds, options.off_pages};
  ByteProgress progress("bench disk", compared_bytes(load));
  progress.begin("written and read");
  const auto results = compare_disk(store, options.folder, load, [&](std::int64_t bytes) { progress.add(bytes); });
  progress.clear();
  if (!is_standard_output(options.json)) print(std::cout, store, size, options.rounds, results);
  if (!options.json.empty()) write_file(options.json, to_json(options, store, size, results).dump(2) + "\n");
  return 0;
}

}  // namespace cli

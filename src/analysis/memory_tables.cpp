// The analyzer's report as tables.
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "zero/memory_report.h"

namespace zero {
namespace {

constexpr std::size_t kMostShares = 10;

std::string megabytes(std::int64_t bytes) {
  return fixed(static_cast<double>(bytes) / 1e6, 3);
}

std::string signed_megabytes(std::int64_t bytes) {
  return (bytes < 0 ? "" : "+") + megabytes(bytes);
}

std::string seconds(double value) {
  return fixed(value, 4);
}

std::string percent(std::int64_t part, std::int64_t whole) {
  return fixed(whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole), 1) + " %";
}

// The first column to the left, the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const {
    std::string text;
    for (const auto& row : rows_) {
      for (std::size_t column = 0; column < row.size(); ++column) text += cell(row[column], column);
      text += '\n';
    }
    return text;
  }

 private:
  std::string cell(const std::string& value, std::size_t column) const {
    std::size_t width = 0;
    for (const auto& row : rows_) width = std::max(width, row[column].size());
    const std::string gap(width - value.size(), ' ');
    return column == 0 ? value + gap : "  " + gap + value;
  }

  std::vector<std::vector<std::string>> rows_;
};

std::string phases(const char* title, std::span<const MemoryPhase> all) {
  if (all.empty()) return {};
  Table table({title, "times", "allocated", "peak", "reserved", "change", "seconds"});
  for (const MemoryPhase& phase : all)
    table.add({phase.name, std::to_string(phase.count), megabytes(phase.allocated), megabytes(phase.peak),
               megabytes(phase.reserved), signed_megabytes(phase.change), seconds(phase.seconds)});
  return table.text() + '\n';
}

std::string shares(const char* title, std::span<const MemoryShare> all, std::int64_t whole, const char* nameless) {
  if (all.empty()) return {};
  Table table({title, "MB", "share"});
  for (const MemoryShare& share : all.first(std::min(all.size(), kMostShares)))
    table.add({share.name.empty() ? nameless : share.name, megabytes(share.bytes), percent(share.bytes, whole)});
  std::int64_t rest = 0;
  for (const MemoryShare& share : all.subspan(std::min(all.size(), kMostShares))) rest += share.bytes;
  if (rest != 0) table.add({"others", megabytes(rest), percent(rest, whole)});
  return table.text() + '\n';
}

std::string peak(const MemoryPeak& peak) {
  std::string text = "peak: " + megabytes(peak.bytes) + " MB after " + seconds(peak.at) + " s";
  if (!peak.running.empty()) text += ", by " + peak.running;
  std::vector<MemoryShare> owners;
  for (int i = 0; i < kMemoryOwners; ++i)
    owners.push_back({std::string(name(static_cast<MemoryOwner>(i))), peak.owners[static_cast<std::size_t>(i)]});
  return text + "\n\n" + shares("at the peak, by owner", owners, peak.bytes, "") +
         shares("at the peak, by unit", peak.units, peak.bytes, "of no unit") +
         shares("at the peak, by operator that allocated it", peak.operators, peak.bytes, "by none that was seen");
}

}  // namespace

std::string_view name(MemoryOwner owner) {
  switch (owner) {
    case MemoryOwner::parameter: return "parameter";
    case MemoryOwner::gradient: return "gradient";
    case MemoryOwner::optimizer: return "optimizer";
    case MemoryOwner::activation: return "activation";
    case MemoryOwner::communication: return "communication";
    case MemoryOwner::temporary: return "temporary";
  }
  return "?";
}

std::string to_string(const MemoryReport& report) {
  return "memory of " + report.device + " in MB (10^6 bytes)\n\n" + phases("tag", report.tags) +
         phases("phase", report.phases) + peak(report.peak) +
         shares("the process", report.process.parts, report.process.total, "") +
         "the process in all: " + megabytes(report.process.total) + " MB\n";
}

}  // namespace zero

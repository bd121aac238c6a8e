#include "zero/agreement.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/random.h"

namespace zero {
namespace {

constexpr std::size_t kLongestLine = 240;

std::vector<std::int64_t> gathered(const Communicator& communicator, const std::vector<std::int64_t>& mine) {
  const auto count = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({mine.data(), count, Dtype::i64}, {all.data(), count * communicator.size(), Dtype::i64})
      .wait();
  return all;
}

std::string values_of_all(const Communicator& communicator, const std::string& line) {
  std::vector<std::int64_t> mine(kLongestLine / sizeof(std::int64_t));
  std::memcpy(mine.data(), line.data(), std::min(line.size(), kLongestLine - 1));
  const std::vector<std::int64_t> all = gathered(communicator, mine);
  std::string text;
  for (std::size_t rank = 0; rank * mine.size() < all.size(); ++rank)
    text += (rank == 0 ? "rank " : "; rank ") + std::to_string(rank) + " has " +
            reinterpret_cast<const char*>(&all[rank * mine.size()]);
  return text;
}

// Each rank's hashes, as many for each as the longest list of lines has.
std::vector<std::int64_t> hashes(const Communicator& communicator, const std::vector<std::string>& lines) {
  const auto counts = gathered(communicator, {static_cast<std::int64_t>(lines.size())});
  std::vector<std::int64_t> mine(static_cast<std::size_t>(*std::ranges::max_element(counts)));
  std::ranges::transform(lines, mine.begin(),
                         [](const std::string& line) { return static_cast<std::int64_t>(fnv1a(line)); });
  return gathered(communicator, mine);
}

}  // namespace

std::optional<Disagreement> disagreement(const Communicator& communicator, const std::vector<std::string>& lines,
                                         const std::string& missing) {
  if (communicator.size() == 1) return {};
  const std::vector<std::int64_t> table = hashes(communicator, lines);
  const std::size_t longest = table.size() / static_cast<std::size_t>(communicator.size());
  for (std::size_t line = 0; line < longest; ++line) {
    bool same = true;
    for (std::size_t at = line; at < table.size(); at += longest) same = same && table[at] == table[line];
    if (!same) return Disagreement{line, values_of_all(communicator, line < lines.size() ? lines[line] : missing)};
  }
  return {};
}

}  // namespace zero

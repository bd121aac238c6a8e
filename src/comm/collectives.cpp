// Of numbers and bytes.
#include "zero/collectives.h"

#include <algorithm>
#include <array>

#include "zero/error.h"

namespace zero {
namespace {

template <std::size_t count>
std::array<double, count> sums(std::array<double, count> values, const World& world) {
  world.communicator().all_reduce({values.data(), count, Dtype::f64}).wait();
  return values;
}

}  // namespace

double sum(double value, const World& world) {
  return sums<1>({value}, world)[0];
}

double mean(double value, const World& world) {
  return sum(value, world) / world.size();
}

double mean(double total, double count, const World& world) {
  const auto [totals, counts] = sums<2>({total, count}, world);
  return totals / counts;
}

void barrier(const World& world) {
  world.communicator().barrier().wait();
}

std::vector<std::string> all_gather_bytes(std::string_view bytes, const World& world) {
  const Communicator& ranks = world.communicator();
  const auto mine = static_cast<std::int64_t>(bytes.size());
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather({&mine, 1, Dtype::i64}, {lengths.data(), ranks.size(), Dtype::i64}).wait();
  const std::int64_t longest = *std::ranges::max_element(lengths);
  std::string padded(bytes);
  padded.resize(static_cast<std::size_t>(longest));
  std::string all(static_cast<std::size_t>(longest * ranks.size()), '\0');
  if (longest > 0)
    ranks.all_gather({padded.data(), longest, Dtype::u8}, {all.data(), longest * ranks.size(), Dtype::u8}).wait();
  std::vector<std::string> parts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank)
    parts.push_back(all.substr(rank * padded.size(), static_cast<std::size_t>(lengths[rank])));
  return parts;
}

std::string broadcast_bytes(std::string_view bytes, const World& world, int root) {
  const Communicator& ranks = world.communicator();
  if (root < 0 || root >= ranks.size())
    throw ConfigError("rank " + std::to_string(ranks.rank()) + ": broadcast_bytes from rank " + std::to_string(root) +
                      " of " + std::to_string(ranks.size()));
  auto length = static_cast<std::int64_t>(bytes.size());
  ranks.broadcast({&length, 1, Dtype::i64}, root).wait();
  std::string all(ranks.rank() == root ? bytes : std::string_view());
  all.resize(static_cast<std::size_t>(length));
  if (length > 0) ranks.broadcast({all.data(), length, Dtype::u8}, root).wait();
  return all;
}

}  // namespace zero

// Of numbers and bytes.
#include "zero/collectives.h"

#include <array>

#include "comm/gathered_texts.h"
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
  return gather_texts(world.communicator(), std::string(bytes));
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

#include "persist/saver.h"

#include <utility>

#include "persist/gathered.h"
#include "zero/error.h"

namespace zero {

std::string save_checkpoint(Env& env, const Communicator& ranks, const SaveOrder& order) {
  std::string saved = write_checkpoint(env, ranks, order.folder, order.snapshot, order.options);
  if (order.keep.last == 0) return saved;
  const std::string fault =
      ranks.rank() != 0 ? "" : fault_of([&] { prune(env, order.folder, order.keep, order.snapshot.scalars().steps); });
  if (const std::string faults = gather_faults(ranks, fault); !faults.empty())
    throw CheckpointError(saved + " is saved, but older ones could not be removed: " + faults);
  return saved;
}

Saver::~Saver() = default;

void Saver::begin(SaveOrder order) {
  if (under_way()) throw StateError("a save begins while another is under way", "finish() that one first");
  order_.emplace(std::move(order));
  pending_ = worker_.submit([this] { saved_ = save_checkpoint(env_, ranks_, *order_); });
}

std::string Saver::finish() {
  if (!under_way()) return {};
  try {
    pending_.wait();
  } catch (...) {
    order_.reset();
    throw;
  }
  order_.reset();
  return std::exchange(saved_, {});
}

}  // namespace zero

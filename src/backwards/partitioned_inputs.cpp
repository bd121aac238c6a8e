#include "backwards/partitioned_inputs.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/lifetimes.h"

namespace zero {
namespace {

struct PartitionsHere {
  std::mutex mutex;
  std::vector<std::shared_ptr<PartitionedInputs>> all;
};

}  // namespace

std::shared_ptr<void> partition_inputs_here(std::shared_ptr<PartitionedInputs> inputs) {
  const std::shared_ptr<PartitionsHere> here = ThreadShared<PartitionsHere>::own();
  const std::lock_guard lock(here->mutex);
  here->all.push_back(inputs);
  return {inputs.get(), [here, inputs](void*) {
            const std::lock_guard at_end(here->mutex);
            std::erase(here->all, inputs);
          }};
}

PartitionsAtWork::PartitionsAtWork() {
  PartitionsHere* const here = ThreadShared<PartitionsHere>::here();
  if (here == nullptr) return;
  const std::lock_guard lock(here->mutex);
  for (const auto& each : here->all) before_.emplace_back(each, each->operators());
}

std::shared_ptr<PartitionedInputs> PartitionsAtWork::found() const {
  const auto found =
      std::ranges::find_if(before_, [](const auto& each) { return each.first->operators() > each.second; });
  return found == before_.end() ? nullptr : found->first;
}

}  // namespace zero

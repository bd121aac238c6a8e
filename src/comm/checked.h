// A communicator whose ranks compare their calls before each operation.
#pragma once

#include <memory>

#include "zero/communicator.h"

namespace zero {

// `inner`, checked: every rank whose peers call another operation, or the same one with other shapes,
// dtypes or root, throws a CommError listing what each rank called. A call blocks until all ranks have
// made theirs; a rank that makes none is found by inner's timeout. Groups split from it are checked.
std::shared_ptr<CommunicatorImpl> checked(std::shared_ptr<CommunicatorImpl> inner);

}  // namespace zero

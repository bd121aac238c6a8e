// P_a along a tensor axis: see PartitionedInputs.
#pragma once

#include <memory>

#include "backwards/partitioned_inputs.h"

namespace zero {

class TensorAxis;

std::shared_ptr<PartitionedInputs> inputs_partitioned_over(std::shared_ptr<TensorAxis> axis);

}  // namespace zero

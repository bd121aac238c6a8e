// What an engine holds of its device while it is built. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/repeated.h"
#include "zero/layout.h"
#include "zero/optimizer.h"
#include "zero/plan.h"

namespace zero {

// At most, on the rank that holds most: units are taken over one after the other, each from its values as they are
// accumulated, all of them, beside what is kept of it and of those before. `plan` as it is on the layout's mesh;
// `staging`: bytes of the buffers through which states on other tiers pass.
std::int64_t building_bytes(const Plan& plan, const Layout& layout, const std::vector<ParameterRule>& rules,
                            const Repeats& repeats, std::int64_t staging);

// Of elements [begin, end) of a unit.
std::int64_t moment_bytes(const UnitLayout& unit, std::int64_t begin, std::int64_t end,
                          const std::vector<ParameterRule>& rules);

// Whether every slice of a unit has as many bytes of moments; blocks are counted.
bool uniform_moments(const std::vector<ParameterRule>& rules);

}  // namespace zero

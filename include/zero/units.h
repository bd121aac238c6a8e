// Which modules of a model are units: what is gathered together, and forgotten together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

// A module that lies inside no unit, as a rule of units sees it.
struct ModuleInfo {
  std::string_view name;  // its path, as in named_modules(): "layers.3"
  std::string_view type;  // its class without namespaces: "BlockImpl" is "Block"
  std::int64_t numel;     // of all parameters in it, each counted once
  bool in_container;      // a child of a ModuleList, ModuleDict or Sequential
  bool container;         // one of these itself
};

// Whether a module is a unit. Asked from the model down, until it says yes: modules inside of a unit are not asked, and
// what lies in no unit is grouped by the module that owns it. A tile of a TiledLinear is a unit whatever it says.
using UnitRule = std::function<bool(const ModuleInfo&)>;

// The default: children of ModuleList, ModuleDict and Sequential that are no containers themselves.
UnitRule units_in_containers();
// Modules of these classes ("Block", "TransformerEncoderLayer").
UnitRule units_of_types(std::vector<std::string> types);
// Modules of these names; "*" stands for a part of a path: "layers.*".
UnitRule units_named(std::vector<std::string> names);
// The largest modules of at most `most` elements, of those of at least `least`.
UnitRule units_by_size(std::int64_t least, std::int64_t most);

}  // namespace zero

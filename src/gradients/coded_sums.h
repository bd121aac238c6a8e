// What gradients need to cross shard groups in codes: memory for these, and, where the plan feeds them back
// (Plan::error_feedback), each unit's errors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backwards/accounts.h"
#include "comm/mesh_groups.h"
#include "partition/routes.h"
#include "units/unit.h"

namespace zero {

class CodedSums {
 public:
  CodedSums(const std::vector<std::unique_ptr<Unit>>& units, const Routes& routes, Accounts& accounts);

  // Memory of the unit's errors, which begin as zeros, unless it is there. Before it is reduced.
  void open(const Unit& unit);
  // For reductions, on the thread that carries them out.
  Coder coder(const Unit& unit, const Route& route);
  // Behind one: where no parameter lies there is no error, though codes that mix values leave some.
  void reduced(const Unit& unit);
  // While nothing is on its way: errors begin anew, of one unit or all; and go, until the next open().
  void begin_anew(const Unit& unit);
  void begin_anew();
  void drop(const Unit& unit) { errors_[index(unit)].reset(); }
  void drop();

  bool has_errors(const Unit& unit) const { return static_cast<bool>(errors_[index(unit)]); }
  // Tells what the rank sends of the unit to each rank across, and where its errors lie: null, of zeros, where that is
  // itself.
  using Tell = std::function<void(const Slice& of, std::uint8_t* errors)>;
  void each_error(const Unit& unit, const Tell& tell) const;

 private:
  static std::size_t index(const Unit& unit) { return static_cast<std::size_t>(unit.index()); }

  const std::vector<std::unique_ptr<Unit>>& units_;
  const Routes& routes_;
  Accounts& accounts_;
  Buffer codes_;                // as much as the unit needs that needs most, of those that came
  std::vector<Buffer> errors_;  // by unit
};

}  // namespace zero

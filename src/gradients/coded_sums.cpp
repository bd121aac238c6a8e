#include "gradients/coded_sums.h"

#include <algorithm>

#include "base/codec.h"
#include "base/error_blocks.h"
#include "partition/wire.h"

namespace zero {

CodedSums::CodedSums(const std::vector<std::unique_ptr<Unit>>& units, const Routes& routes, Accounts& accounts)
    : units_(units), routes_(routes), accounts_(accounts), errors_(units.size()) {}

void CodedSums::open(const Unit& unit) {
  Buffer& errors = errors_[index(unit)];
  const std::int64_t bytes = routes_.error_bytes(unit.layout());
  if (errors || bytes == 0) return;
  errors = accounts_.buffer({Owner::reduction, unit.index()}, bytes, at::kByte);
  accounts_.device().zero(errors.data(), bytes);
}

// One that is trained later may need more than all that are from the start.
Coder CodedSums::coder(const Unit& unit, const Route& route) {
  std::int64_t needed = 0;
  for (const Hop& hop : route.hops)
    if (hop.codec != Wire::native)
      needed = CodedSum(hop.to.count, hop.kept, hop.codec, hop.members(), hop.brought()).bytes();
  if (needed > (codes_ ? codes_.count() : 0)) {
    std::int64_t most = routes_.coded_sum_bytes(unit.layout());
    for (const auto& each : units_)
      if (each->layout().trainable()) most = std::max(most, routes_.coded_sum_bytes(each->layout()));
    codes_.reset();
    codes_ = accounts_.buffer(Owner::reduction, most, at::kByte);
  }
  const View codes =
      view_of(codes_ ? codes_.data() : nullptr, Dtype::u8, 0, codes_ ? codes_.count() : 0, accounts_.where());
  const Buffer& errors = errors_[index(unit)];
  return {accounts_.device(), codes, errors ? static_cast<std::uint8_t*>(errors.data()) : nullptr};
}

void CodedSums::reduced(const Unit& unit) {
  each_error(unit, [&](const Slice& of, std::uint8_t* errors) {
    if (errors == nullptr) return;
    std::uint8_t* const codes = errors + bytes_of_heads<ErrorBlocks>(of.count);
    for (const auto& [begin, end] : unit.layout().gaps())
      if (const std::int64_t first = std::max(begin, of.begin), last = std::min(end, of.end()); first < last)
        accounts_.device().zero(codes + (first - of.begin), last - first);
  });
}

void CodedSums::begin_anew(const Unit& unit) {
  if (const Buffer& errors = errors_[index(unit)]) accounts_.device().zero(errors.data(), errors.count());
}

void CodedSums::begin_anew() {
  for (const auto& unit : units_) begin_anew(*unit);
}

void CodedSums::drop() {
  for (Buffer& errors : errors_) errors.reset();
}

void CodedSums::each_error(const Unit& unit, const Tell& tell) const {
  const Buffer& errors = errors_[index(unit)];
  if (!has_errors(unit)) return;
  for (const Routes::Errors& each : routes_.errors(unit.layout()))
    tell(each.of, each.at ? static_cast<std::uint8_t*>(errors.data()) + *each.at : nullptr);
}

}  // namespace zero

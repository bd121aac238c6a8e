#include <algorithm>
#include <cstring>
#include <exception>

#include "state/unit.h"
#include "zero/engine.h"

namespace zero {

class Gather::Impl {
 public:
  Impl(const std::vector<at::Tensor>& parameters, std::optional<int> from_rank)
      : from_rank_(from_rank), exceptions_(std::uncaught_exceptions()) {
    for (const at::Tensor& parameter : parameters) {
      Unit* unit = parameter.defined() ? Unit::of(parameter.unsafeGetTensorImpl()) : nullptr;
      if (unit == nullptr || holds(unit)) continue;
      unit->host->hold(*unit);
      held_.push_back({unit, unit->sharded() ? Buffer() : copy_of(*unit)});
    }
  }

  // What was written is kept, unless the scope is left by an exception.
  void close() {
    const bool keep = std::uncaught_exceptions() == exceptions_;
    for (const auto& [unit, before] : held_) {
      if (!keep) {
        unit->host->drop(*unit, before);
        continue;
      }
      unit->host->keep(*unit, from_rank_);
      unit->host->let_go(*unit);
    }
  }

 private:
  struct Held {
    Unit* unit;
    Buffer before;  // of a replicated unit, which an exception restores
  };

  static Buffer copy_of(Unit& unit) {
    Buffer copy = unit.scratch();
    std::memcpy(copy.data(), unit.whole().data, static_cast<std::size_t>(unit.layout().bytes()));
    return copy;
  }

  bool holds(const Unit* unit) const {
    return std::any_of(held_.begin(), held_.end(), [&](const Held& held) { return held.unit == unit; });
  }

  std::optional<int> from_rank_;
  int exceptions_;
  std::vector<Held> held_;
};

Gather::Gather(std::vector<at::Tensor> parameters, std::optional<int> from_rank)
    : impl_(std::make_unique<Impl>(parameters, from_rank)) {}

Gather::~Gather() noexcept(false) {
  impl_->close();
}

}  // namespace zero

#include <algorithm>
#include <exception>
#include <memory>

#include "units/unit.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace zero {

class Gather::Impl {
 public:
  Impl(const std::vector<at::Tensor>& parameters, std::optional<int> from_rank)
      : from_rank_(from_rank), exceptions_(std::uncaught_exceptions()) {
    try {
      for (const at::Tensor& parameter : parameters) hold(parameter);
    } catch (...) {
      for (const Held& held : held_) held.unit->owner->end_scope(*held.unit);
      throw;
    }
  }

  // What was written is kept, unless the scope is left by an exception. Lets go of every unit, then
  // tells of the first failure; of none where another exception is on its way.
  void close() {
    const bool unwinding = std::uncaught_exceptions() != exceptions_;
    std::exception_ptr failure;
    for (Held& held : held_) {
      try {
        close(held, unwinding);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure && !unwinding) std::rethrow_exception(failure);
  }

 private:
  struct Held {
    Unit* unit;
    std::weak_ptr<const void> engine;
    Buffer before;  // what an exception restores; empty where forgetting the unit does
  };

  void hold(const at::Tensor& parameter) {
    Unit* unit = parameter.defined() ? Unit::of(parameter.unsafeGetTensorImpl()) : nullptr;
    if (unit != nullptr && from_rank_ && sharded::is_sharded(parameter.unsafeGetTensorImpl()))
      throw ConfigError("zero::gather: parameter '" + unit->slot_of(parameter).name +
                            "' is cut over the tensor axis, and no rank can write all of it alone",
                        "write the same on every rank, without `from_rank`");
    if (unit == nullptr || holds(unit)) return;
    const bool copies = !unit->paged() || unit->owner->held(*unit);
    unit->owner->begin_scope(*unit, from_rank_);
    held_.push_back({unit, unit->owner->life(), Buffer()});
    if (copies) held_.back().before = unit->copy_of_full();
  }

  void close(Held& held, bool unwinding) {
    if (held.engine.expired()) return held.before.orphan();
    UnitOwner& owner = *held.unit->owner;
    if (unwinding) return owner.rollback_scope(*held.unit, held.before);
    const LetGo at_end{owner, *held.unit};
    owner.commit_scope(*held.unit, from_rank_);
  }

  struct LetGo {
    UnitOwner& owner;
    Unit& unit;
    ~LetGo() { owner.end_scope(unit); }
  };

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

#include <algorithm>
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
      if (unit == nullptr || std::find(units_.begin(), units_.end(), unit) != units_.end()) continue;
      unit->host->hold(*unit);
      units_.push_back(unit);
    }
  }

  // What was written is kept, unless the scope is left by an exception.
  void close() {
    const bool keep = std::uncaught_exceptions() == exceptions_;
    for (Unit* unit : units_) {
      if (keep) unit->host->keep(*unit, from_rank_);
      unit->host->let_go(*unit);
    }
  }

 private:
  std::optional<int> from_rank_;
  int exceptions_;
  std::vector<Unit*> units_;
};

Gather::Gather(std::vector<at::Tensor> parameters, std::optional<int> from_rank)
    : impl_(std::make_unique<Impl>(parameters, from_rank)) {}

Gather::~Gather() noexcept(false) {
  impl_->close();
}

}  // namespace zero

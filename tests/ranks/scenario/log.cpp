#include "ranks/scenario/log.h"

#include <ATen/ATen.h>

#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace zero::test::scenario {
namespace {

using Same = std::function<bool(const at::Tensor&, const at::Tensor&)>;

// Numbers that are none are all the same.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  if (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) return true;
  return a.is_floating_point() &&
         at::where(a.isnan(), b.isnan(), a.eq(b).logical_and(a.signbit().eq(b.signbit()))).all().item<bool>();
}

Same within(double tolerance) {
  return [=](const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() == b.sizes() &&
           at::allclose(a.to(at::kDouble), b.to(at::kDouble), tolerance, tolerance, /*equal_nan=*/true);
  };
}

std::string in_words(const at::Tensor& a, const at::Tensor& b) {
  std::ostringstream text;
  text.precision(9);
  if (a.sizes() != b.sizes()) {
    text << "of sizes " << a.sizes() << " and " << b.sizes();
    return text.str();
  }
  const at::Tensor x = a.to(at::kDouble).flatten(), y = b.to(at::kDouble).flatten();
  const at::Tensor other = at::where(x.isnan(), y.isnan().logical_not(), x.ne(y)).nonzero().flatten();
  if (other.numel() == 0) return "in the sign of a zero, or the type";
  const at::Tensor apart = (x - y).abs().index({other}).nan_to_num(1e300);
  const std::int64_t at = other[apart.argmax()].item<std::int64_t>();
  text << x[at].item<double>() << " and " << y[at].item<double>();
  if (x.numel() > 1) text << " at " << at << ", " << other.numel() << " of " << x.numel() << " differ";
  return text.str();
}

std::string at_event(const Seen& seen) {
  return "event " + std::to_string(seen.event) + ", " + seen.what + ": ";
}

}  // namespace

void Log::see(const std::string& what, const at::Tensor& value, Whose whose) {
  if (find(event_, what) != nullptr) throw std::logic_error("a scenario shows '" + what + "' twice at one event");
  const at::Tensor copy = at::empty(value.sizes(), value.options().requires_grad(false));
  copy.copy_(value.detach());
  by_name_[{event_, what}] = all_.size();
  all_.push_back({event_, what, copy, whose});
}

void Log::see(const std::string& what, double value, Whose whose) {
  see(what, at::scalar_tensor(value, at::kDouble), whose);
}

const Seen* Log::find(int event, const std::string& what) const {
  const auto found = by_name_.find({event, what});
  return found == by_name_.end() ? nullptr : &all_[found->second];
}

std::string difference(const Log& a, const Log& b) {
  for (std::size_t i = 0; i < a.all().size() && i < b.all().size(); ++i) {
    const Seen &x = a.all()[i], &y = b.all()[i];
    if (x.event != y.event || x.what != y.what) return at_event(x) + "the other run has " + at_event(y);
    if (!same_bits(x.value, y.value)) return at_event(x) + in_words(x.value, y.value);
  }
  return a.all().size() == b.all().size() ? "" : "one run shows more than the other";
}

std::string difference(const Log& a, const Log& b, double tolerance, int end) {
  const Same same = within(tolerance);
  for (const Seen& x : a.all())
    if (const Seen* const y = b.find(x.event, x.what); y != nullptr && x.event < end && !same(x.value, y->value))
      return at_event(x) + in_words(x.value, y->value);
  return {};
}

int first_apart(const Log& a, const Log& b, double tolerance) {
  const Same same = within(tolerance);
  for (const Seen& x : a.all())
    if (const Seen* const y = b.find(x.event, x.what); y != nullptr && !same(x.value, y->value)) return x.event;
  return std::numeric_limits<int>::max();
}

namespace {

std::map<std::string, const Seen*> of_micro_batches(const std::vector<Log>& ranks) {
  std::map<std::string, const Seen*> found;
  for (const Log& log : ranks)
    for (const Seen& each : log.all())
      if (each.whose == Whose::micro_batches) found.emplace(each.what, &each);
  return found;
}

}  // namespace

std::string difference_in_other_order(const std::vector<Log>& a, const std::vector<Log>& b) {
  const auto others = of_micro_batches(b);
  for (const auto& [what, seen] : of_micro_batches(a))
    if (const auto other = others.find(what); other == others.end() || !same_bits(seen->value, other->second->value))
      return at_event(*seen) +
             (other == others.end() ? "not in the other run" : in_words(seen->value, other->second->value));
  for (std::size_t rank = 0; rank < a.size(); ++rank)
    for (const Seen& x : a[rank].all()) {
      if (x.whose != Whose::everyones && x.whose != Whose::ranks) continue;
      const Seen* const y = b[rank].find(x.event, x.what);
      if (y == nullptr) return at_event(x) + "not in the other run";
      if (!same_bits(x.value, y->value)) return at_event(x) + in_words(x.value, y->value);
    }
  return {};
}

std::string difference_between_ranks(const std::vector<Log>& ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    for (const Seen& x : ranks[0].all()) {
      if (x.whose != Whose::everyones) continue;
      const Seen* const y = ranks[rank].find(x.event, x.what);
      if (y == nullptr) return at_event(x) + "not seen on rank " + std::to_string(rank);
      if (!same_bits(x.value, y->value))
        return at_event(x) + in_words(x.value, y->value) + " on ranks 0 and " + std::to_string(rank);
    }
  return {};
}

}  // namespace zero::test::scenario

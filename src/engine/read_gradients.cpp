#include "engine/read_gradients.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "backwards/unwatched.h"
#include "device/square_sums.h"
#include "device/torch/torch_device.h"
#include "zero/error.h"

namespace zero {
namespace {

// Each group's sum as limbs, one sum after the other, with what was there.
void add_limbs(std::vector<ExactSum> sums, std::vector<std::int64_t>& words) {
  for (std::size_t group = 0; group < sums.size(); ++group) {
    const auto limbs = sums[group].limbs();
    for (std::size_t i = 0; i < limbs.size(); ++i) words[group * ExactSum::kLimbs + i] += limbs[i];
  }
}

// Views of memory that is the engine's end with the call that they were given to: who keeps one is told.
class EndOfSlice {
 public:
  explicit EndOfSlice(const GradientSlice& slice) : slice_(slice) {}
  ~EndOfSlice() {
    c10::StorageImpl& storage = *slice_.sum.storage().unsafeGetStorageImpl();
    storage.set_data_ptr_noswap(at::DataPtr(nullptr, slice_.sum.device()));
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
        "zero: the gradient slice of parameter '" + slice_.parameter +
        "' is used after the call of for_each_gradient_slice() that it was given to; clone what is to be kept");
  }
  EndOfSlice(const EndOfSlice&) = delete;
  EndOfSlice& operator=(const EndOfSlice&) = delete;

 private:
  const GradientSlice& slice_;
};

}  // namespace

void GradientReader::require_float8() const {
  const auto& float8 = accumulation_.float8();
  if (!float8) return;
  for (const auto& unit : parameters_.units())
    for (std::size_t slot = 0; slot < unit->layout().slots().size(); ++slot) {
      const Slot& place = unit->layout().slots()[slot];
      if (float8->missed(place.index) && gradients_.arrived(unit->index(), static_cast<int>(slot)))
        throw StateError("parameter '" + place.name + "' is to be computed with in FP8, but no linear layer did",
                         "leave it out by Options::float8.takes, or its layer's bias by Options::full_precision");
    }
}

// What all along the tensor axis have counts once, on the first of them.
bool GradientReader::counted_here(const Slot& slot) const {
  return ranks_.tensor() == nullptr || ranks_.tensor()->rank() == 0 || trained_.cut(slot.index).has_value();
}

// From the end, so that what the update needs first was read last.
void GradientReader::add_to(StepSummary& summary) {
  StepSums& sums = accumulation_.sums();
  sums.clear_squares();
  summary.present.assign(trained_.parameters(), 0);
  for (auto at = parameters_.units().rbegin(); at != parameters_.units().rend(); ++at) {
    const auto& unit = *at;
    const UnitLayout& layout = unit->layout();
    const HeldGradient* const held = gradients_.held(unit->index());
    if (held == nullptr) continue;
    for (std::size_t slot = 0; slot < layout.slots().size(); ++slot)
      summary.present[static_cast<std::size_t>(layout.slots()[slot].index)] =
          gradients_.arrived(unit->index(), static_cast<int>(slot));
    const auto add = [&](const Slice& elements) {
      gradients_.read(unit->index(), elements, [&](const void* values, std::int64_t, std::int64_t count) {
        sums.add_squares(held->device(), values, held->dtype(), count);
      });
    };
    if (std::ranges::all_of(layout.slots(), [&](const Slot& slot) { return counted_here(slot); })) {
      add({unit->slice_begin(), layout.shard_length()});
      continue;
    }
    for (const Piece& piece : layout.pieces(unit->rank()))
      if (counted_here(layout.slot(piece.slot))) add({piece.begin, piece.end - piece.begin});
  }
  summary.sums = sums.read();
}

// This rank's part of each group's sum of squares, as limbs.
std::vector<std::int64_t> GradientReader::squares_of_groups() {
  Accounts& accounts = ranks_.accounts();
  const std::size_t groups = trained_.options().groups.size() + 1;
  SquareSums here(accounts.device(), groups), of_host(accounts.computing(Tier::host), groups);
  for (const auto& unit : parameters_.units()) {
    const HeldGradient* const held = gradients_.held(unit->index());
    if (held == nullptr) continue;
    SquareSums& sums = &held->device() == &accounts.device() ? here : of_host;
    for (const Piece& piece : unit->layout().pieces(unit->rank())) {
      if (!counted_here(unit->layout().slot(piece.slot))) continue;
      const int taken = trained_.group_of(unit->layout().slot(piece.slot).index);
      const std::size_t group = taken < 0 ? groups - 1 : static_cast<std::size_t>(taken);
      gradients_.read(
          unit->index(), {piece.begin, piece.end - piece.begin},
          [&](const void* values, std::int64_t, std::int64_t count) { sums.add(group, values, held->dtype(), count); });
    }
  }
  std::vector<std::int64_t> words(groups * ExactSum::kLimbs);
  add_limbs(here.read(), words);
  add_limbs(of_host.read(), words);
  return words;
}

std::vector<double> GradientReader::group_norms() {
  if (!trained_.options().group_norms) return {};
  const std::vector<std::int64_t> mine = squares_of_groups();
  const std::vector<std::int64_t> all = ranks_.table(Exchange::Kind::vote, mine);
  std::vector<double> norms;
  for (std::size_t first = 0; first < mine.size(); first += ExactSum::kLimbs) {
    ExactSum squares;
    for (std::size_t at = first; at < all.size(); at += mine.size())
      squares.add(std::span<const std::int64_t>(all).subspan(at, ExactSum::kLimbs));
    norms.push_back(std::sqrt(squares.value()) / accumulation_.held_times());
  }
  return norms;
}

void GradientReader::require_gradients(const char* call) {
  const Plan& plan = trained_.plan();
  accumulation_.apply_zero_grad();
  gradients_.show_placeholders();
  if (accumulation_.micro() < plan.accumulate())
    throw StateError(std::string(call) + " after " + std::to_string(accumulation_.micro()) + " of a step's " +
                         std::to_string(plan.accumulate()) + " backwards: gradients are not summed over the ranks yet",
                     "call it between the last backward and step()");
  if (plan[State::gradient].tier != Tier::device)
    throw StateError(std::string(call) + " with gradients on tier " + std::string(name(plan[State::gradient].tier)),
                     "leave them on the device, or clip by Options::clip");
}

void GradientReader::each_slice(Unit& unit, const std::function<void(const Slot&, GradientSlice)>& use) const {
  const HeldGradient* const held = gradients_.held(unit.index());
  if (held == nullptr) return;
  const Shard mine = trained_.routes().rest(State::optimizer, unit.layout());
  for (const Slot& slot : unit.layout().slots()) {
    const std::int64_t begin = std::max(slot.begin, mine.begin), end = std::min(slot.end(), mine.begin + mine.count);
    if (begin >= end) continue;
    const View view = held->view({begin, end - begin});
    use(slot, {.parameter = slot.name,
               .begin = begin - slot.begin,
               .sum = tensor_at(unit.device(), view.data, scalar_type(view.dtype), view.count),
               .scale = 1.0 / accumulation_.held_times()});
  }
}

void GradientReader::for_each_slice(const std::function<void(const GradientSlice&)>& use) {
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  for (auto& unit : parameters_.units())
    each_slice(*unit, [&](const Slot&, const GradientSlice& slice) {
      const EndOfSlice end(slice);
      use(slice);
    });
}

at::Tensor GradientReader::gradient(const at::Tensor& parameter) {
  Unit& unit = parameters_.unit_of(parameter, "gradient()");
  const Unwatched unwatched;
  const at::NoGradGuard no_grad;
  const at::TensorOptions wide(scalar_type(accumulation(unit.layout().dtype())));
  if (!unit.adopted()) return at::empty_like(parameter, wide);
  const at::Tensor flat = at::zeros({unit.layout().length()}, wide);
  each_slice(unit, [&](const Slot& slot, const GradientSlice& slice) {
    flat.narrow(0, slot.begin + slice.begin, slice.sum.numel()).copy_(slice.sum);
  });
  parameters_.gather_updated(unit, flat);
  return unit.part_of(flat, parameter).mul(1.0 / accumulation_.held_times()).to(unit.device());
}

}  // namespace zero

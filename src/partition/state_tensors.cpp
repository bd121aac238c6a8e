#include "partition/state_tensors.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/text.h"
#include "partition/full_tensor_owners.h"
#include "partition/moments.h"

namespace zero {
namespace {

StateTensor scale_of(const Slot& slot, const ElementOrder& order, StateKey key) {
  StateBlocks blocks{kStateBlock, slot.begin % kStateBlock};
  if (!order.row_major()) blocks.order = order.dimensions();
  return {std::move(key), Dtype::f32, {scales(Piece{0, slot.begin, slot.end()})}, std::move(blocks)};
}

std::string sentence(const StateTensor& tensor) {
  return describe(tensor.key) + ", " + describe(tensor);
}

using Given = std::map<StateKey, const StateTensor*>;

// What is wrong with what is given of one parameter or buffer.
void compare(const std::vector<StateTensor>& expected, const std::vector<const StateTensor*>& given,
             std::vector<std::string>& faults) {
  Given left;
  for (const StateTensor* each : given)
    if (!left.emplace(each->key, each).second) faults.push_back(sentence(*each) + ", is given twice");
  for (const StateTensor& each : expected) {
    const auto found = left.find(each.key);
    if (found == left.end()) {
      faults.push_back(sentence(each) + ", is missing");
      continue;
    }
    if (*found->second != each) faults.push_back(sentence(each) + ", is given as " + describe(*found->second));
    left.erase(found);
  }
  for (const auto& [key, each] : left) faults.push_back(sentence(*each) + ", is not expected");
}

bool same(const std::vector<StateTensor>& expected, const std::vector<const StateTensor*>& given) {
  std::vector<std::string> faults;
  compare(expected, given, faults);
  return faults.empty();
}

// Without what an optimizer keeps beside them.
std::vector<StateTensor> values_of(std::vector<StateTensor> tensors) {
  std::erase_if(tensors, [](const StateTensor& each) { return !is_value(each.key.kind); });
  return tensors;
}

// "adamw (exp_avg, exp_avg_sq)": an optimizer, and what it keeps of a parameter.
std::string kept_by(const std::string& optimizer, const auto& tensors) {
  std::vector<std::string> words;
  for (const StateTensor* each : tensors)
    if (!is_value(each->key.kind) && each->key.kind != StateKind::scale)
      words.push_back(each->key.part.empty() ? std::string(name(each->key.kind)) : each->key.part);
  return optimizer + (words.empty() ? "" : " (" + joined(words) + ")");
}

// Parameters whose state is another optimizer's, by what both keep.
class OtherOptimizers {
 public:
  // Whether this is one of them.
  bool add(const ExpectedParameter& parameter, const std::vector<const StateTensor*>& given, std::int64_t updates,
           const StateScalars& scalars) {
    const auto told = scalars.optimizers.find(parameter.name);
    if (told == scalars.optimizers.end() || same_state(told->second, parameter.optimizer)) return false;
    const bool bare = std::ranges::all_of(given, [](const StateTensor* each) { return is_value(each->key.kind); });
    if (bare && updates == 0) return false;
    std::vector<const StateTensor*> expected;
    for (const auto* tensors : {&parameter.kept, &parameter.fields})
      for (const StateTensor& each : *tensors) expected.push_back(&each);
    std::string what = "the optimizer's state is of " + kept_by(told->second, given) + ", and not of " +
                       kept_by(parameter.optimizer, expected) + ": ";
    names_[std::move(what)].push_back(parameter.name);
    return true;
  }

  void tell(std::vector<std::string>& faults) const {
    for (const auto& [what, names] : names_) faults.push_back(what + joined(names));
  }

 private:
  std::map<std::string, std::vector<std::string>> names_;
};

// Whether it comes with state of its optimizer, which adds to the faults what is wrong with it. `told`: whose that
// is, where its values alone do not tell whether there is one. `other`: that is another's, which is told of elsewhere.
bool fits(ExpectedParameter parameter, std::vector<const StateTensor*> given, std::int64_t updates, bool told,
          bool other, std::vector<std::string>& faults) {
  if (other) {
    std::erase_if(given, [](const StateTensor* each) { return !is_value(each->key.kind); });
    parameter.kept = values_of(std::move(parameter.kept));
    parameter.fields.clear();
  }
  std::vector<StateTensor>& kept = parameter.kept;
  if (updates > 0) kept.insert(kept.end(), parameter.fields.begin(), parameter.fields.end());
  if (updates == 0 && same(parameter.plain, given) && (!told || kept != parameter.plain)) return false;
  if (updates == 0 && same(values_of(kept), given)) return true;
  const bool bare = std::ranges::all_of(given, [](const StateTensor* each) { return is_value(each->key.kind); });
  if (updates == 0 && bare) kept = values_of(std::move(kept));
  const bool frozen = !parameter.trainable && given.size() == 1 && given[0]->key.kind == StateKind::parameter;
  compare(frozen ? parameter.plain : kept, given, faults);
  return true;
}

}  // namespace

bool is_value(StateKind kind) {
  return kind == StateKind::parameter || kind == StateKind::main_weight || kind == StateKind::remainder;
}

bool may_be_left_out(StateKind kind) {
  return kind == StateKind::gathered || kind == StateKind::error;
}

std::vector<StateTensor> state_tensors(const UnitLayout& unit, const Slot& slot, const ParameterRule& rule,
                                       const ElementOrder& order, const Plan& plan, bool kept) {
  const Dtype stored = unit.dtype(), wide = accumulation(stored);
  const Remainder remainder = plan.remainder(stored);
  const bool main = kept && wide != stored && remainder == Remainder::main_weights;
  std::vector<StateTensor> tensors;
  const auto add = [&](StateKind kind, std::string part, Dtype dtype, std::vector<std::int64_t> shape) {
    tensors.push_back({{slot.name, kind, std::move(part)}, dtype, std::move(shape)});
  };
  add(main ? StateKind::main_weight : StateKind::parameter, "", main ? wide : stored, rule.shape);
  if (!kept) return tensors;
  if (wide != stored && remainder == Remainder::kept) add(StateKind::remainder, "", stored, rule.shape);
  const Dtype moment = moment_dtype(rule.optimizer, stored);
  for (int i = 0; i < moments(rule.optimizer); ++i) {
    const std::string part(moment_name(rule.optimizer, i));
    add(StateKind::moment, part, moment, rule.shape);
    if (moment == Dtype::u8) tensors.push_back(scale_of(slot, order, {slot.name, StateKind::scale, part}));
  }
  if (owned_values(rule) == 0) return tensors;
  const auto [rows, columns] = factor_shapes(rule.shape);
  add(StateKind::row, "", wide, rows);
  add(StateKind::column, "", wide, columns);
  return tensors;
}

StateFit fit_state(const std::vector<ExpectedParameter>& parameters, const std::vector<StateTensor>& buffers,
                   const std::vector<StateTensor>& given, const StateScalars& scalars) {
  StateFit fit;
  std::map<std::string, std::vector<const StateTensor*>> of_parameter;
  std::vector<const StateTensor*> others;
  std::set<std::string> names;
  for (const ExpectedParameter& each : parameters) names.insert(each.name);
  for (const StateTensor& each : given) {
    if (may_be_left_out(each.key.kind)) continue;
    if (each.key.kind == StateKind::buffer || !names.contains(each.key.name)) {
      others.push_back(&each);
    } else {
      of_parameter[each.key.name].push_back(&each);
    }
  }
  std::map<std::string, std::int64_t> updates = scalars.updates;
  std::map<std::string, StateScalars::Float8History> float8 = scalars.float8;
  OtherOptimizers optimizers;
  for (const ExpectedParameter& each : parameters) {
    const auto counted = updates.extract(each.name);
    const bool left_out = counted.empty() && !each.trainable && of_parameter[each.name].empty();
    if (left_out) {
      fit.kept.push_back(0);
      continue;
    }
    if (counted.empty()) fit.faults.push_back(each.name + ": how often it was updated is missing");
    const std::int64_t count = counted.empty() ? 0 : counted.mapped();
    const std::vector<const StateTensor*>& tensors = of_parameter[each.name];
    const bool other = optimizers.add(each, tensors, count, scalars);
    const bool told = scalars.optimizers.contains(each.name);
    fit.kept.push_back(fits(each, tensors, count, told, other, fit.faults) ? 1 : 0);
    if (each.float8) float8.erase(each.name);
  }
  optimizers.tell(fit.faults);
  compare(buffers, others, fit.faults);
  for (const auto& [name, count] : updates) fit.faults.push_back(name + ": a count of updates is not expected");
  for (const auto& [name, history] : float8) fit.faults.push_back(name + ": an FP8 history is not expected");
  return fit;
}

std::vector<std::string> lines_of(const std::vector<StateTensor>& tensors, const StateScalars& scalars) {
  std::vector<std::string> lines{"steps " + std::to_string(scalars.steps) + ", skipped " +
                                 std::to_string(scalars.skipped_steps) + ", micro-batches " +
                                 std::to_string(scalars.micro_batches) + ", seed " + std::to_string(scalars.seed)};
  if (const auto& scaler = scalars.loss_scaler)
    lines.push_back("loss scale " + shortest(scaler->value) + ", clean " + std::to_string(scaler->clean_steps) +
                    ", left " + std::to_string(scaler->overflows_left));
  for (const auto& [name, count] : scalars.updates) lines.push_back(name + ": updates " + std::to_string(count));
  for (const auto& [name, optimizer] : scalars.optimizers) lines.push_back(name + ": updated by " + optimizer);
  for (const auto& [name, history] : scalars.float8)
    lines.push_back(name + ": inputs " + shortest(history.inputs) + ", gradients " + shortest(history.gradients));
  for (const StateTensor& each : tensors) lines.push_back(sentence(each));
  return lines;
}

}  // namespace zero

#include "engine/adapted_source.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/elements.h"
#include "base/half.h"
#include "partition/moments.h"

namespace zero {
namespace {

constexpr std::int64_t kConverted = 1 << 16;  // elements that are converted at once

// What rounding cuts off them, as Precision::bf16_kahan keeps it.
void put_remainders(const std::vector<double>& from, void* to) {
  auto* const values = static_cast<Bf16*>(to);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto value = static_cast<float>(from[i]);
    Bf16 rounded;
    narrow(value, rounded);
    values[i] = {};
    if (std::isfinite(widen(rounded))) cut(value - widen(rounded), values[i]);
  }
}

void put(const std::vector<double>& from, const StateTensor& tensor, void* to) {
  if (tensor.key.kind == StateKind::remainder) return put_remainders(from, to);
  convert_elements(from.data(), Dtype::f64, to, tensor.dtype, static_cast<std::int64_t>(from.size()));
}

}  // namespace

AdaptedSource::AdaptedSource(StateSource& source, const std::vector<ExpectedParameter>& parameters,
                             const ExpectedBuffers& buffers, const LoadOptions& options, std::uint64_t seed)
    : source_(source), options_(options), scalars_(source.scalars()), given_(source.tensors()) {
  name_moments(parameters);
  for (std::size_t i = 0; i < given_.size(); ++i) index_.emplace(given_[i].key, i);
  if (options_.weights_only) {
    begin();
    scalars_.seed = seed;
  }
  std::map<std::string, const ExpectedParameter*> expected;
  for (const ExpectedParameter& each : parameters) {
    expected.emplace(each.name, &each);
    add(each);
    if (!each.float8) scalars_.float8.erase(each.name);
  }
  std::map<std::string, const StateTensor*> expected_buffers;
  for (const StateTensor& each : buffers.tensors) expected_buffers.emplace(each.key.name, &each);
  for (const auto& [key, tensor] : index_) {
    if (key.kind == StateKind::buffer) {
      const auto found = expected_buffers.find(key.name);
      if (found != expected_buffers.end()) {
        add_buffer(*found->second);
      } else if (!buffers.of_program.contains(key.name)) {
        pass(tensor);
      }
    } else if (may_be_left_out(key.kind)
                   ? !options_.weights_only
                   : !expected.contains(key.name) && (!options_.weights_only || is_value(key.kind))) {
      pass(tensor);
    }
  }
}

void AdaptedSource::name_moments(const std::vector<ExpectedParameter>& parameters) {
  std::map<std::string, std::vector<std::string>> names;  // of the engine's moments, by parameter
  for (const ExpectedParameter& each : parameters)
    for (const StateTensor& tensor : each.kept)
      if (tensor.key.kind == StateKind::moment) names[each.name].push_back(tensor.key.part);
  for (StateTensor& each : given_) {
    StateKey& key = each.key;
    const auto found = names.find(key.name);
    if ((key.kind != StateKind::moment && key.kind != StateKind::scale) || found == names.end() ||
        scalars_.optimizers.contains(key.name))
      continue;
    for (std::size_t i = 0; i < found->second.size(); ++i)
      if (key.part == std::to_string(i)) {
        key.part = found->second[i];
        break;
      }
  }
}

// As a run does.
void AdaptedSource::begin() {
  StateScalars first;
  for (const auto& [name, count] : scalars_.updates) first.updates.emplace(name, 0);
  scalars_ = std::move(first);
}

void AdaptedSource::pass(std::size_t tensor) {
  tensors_.push_back(given_[tensor]);
  origins_.push_back({.main = tensor});
}

// One that the source has, too.
void AdaptedSource::add_buffer(const StateTensor& wanted) {
  const std::size_t tensor = index_.at(wanted.key);
  const StateTensor& there = given_[tensor];
  const bool other = there.dtype != wanted.dtype && there.shape == wanted.shape;
  if (!other || !is_floating(there.dtype) || !is_floating(wanted.dtype)) return pass(tensor);
  tensors_.push_back(wanted);
  origins_.push_back({.main = tensor, .converted = true});
}

bool AdaptedSource::has(const StateTensor& expected) const {
  const auto found = index_.find(expected.key);
  return found != index_.end() && given_[found->second] == expected;
}

// But for buffers, and what may be left out.
std::vector<std::size_t> AdaptedSource::given(const std::string& name) const {
  std::vector<std::size_t> all;
  for (auto at = index_.lower_bound({name, StateKind::parameter, ""}); at != index_.end() && at->first.name == name;
       ++at)
    if (at->first.kind < StateKind::gathered) all.push_back(at->second);
  return all;
}

void AdaptedSource::add(const ExpectedParameter& parameter) {
  const std::vector<std::size_t> all = given(parameter.name);
  const bool bare = all.size() == 1 && is_value(given_[all.front()].key.kind);
  if (bare && has(parameter.plain.front())) {
    pass(all.front());
  } else {
    add_values(parameter);
  }
  if (!options_.weights_only && add_optimizer(parameter)) return;
  if (parameter.trainable || scalars_.updates.contains(parameter.name)) scalars_.updates[parameter.name] = 0;
  scalars_.optimizers.erase(parameter.name);
}

// One that the engine has as `parameter` or as main weight, whatever the source has.
void AdaptedSource::add_values(const ExpectedParameter& parameter) {
  const auto find = [&](StateKind kind) {
    const auto found = index_.find({parameter.name, kind, ""});
    return found == index_.end() ? std::nullopt : std::optional(found->second);
  };
  const auto main = find(StateKind::main_weight), stored = find(StateKind::parameter);
  const auto from = main ? main : stored;
  for (const StateTensor& wanted : parameter.kept) {
    if (!is_value(wanted.key.kind)) continue;
    if (has(wanted)) {
      pass(index_.at(wanted.key));
      continue;
    }
    if (!from) continue;  // which is told of
    const StateTensor& there = given_[*from];
    if (there.shape != wanted.shape || !is_floating(there.dtype) || !is_floating(wanted.dtype)) {
      if (wanted.key.kind != StateKind::remainder) pass(*from);
      continue;
    }
    tensors_.push_back(wanted);
    origins_.push_back({.main = *from, .rest = main ? std::nullopt : find(StateKind::remainder), .converted = true});
  }
}

// False: it begins.
bool AdaptedSource::add_optimizer(const ExpectedParameter& parameter) {
  std::vector<StateTensor> wanted = parameter.kept;
  const auto updates = scalars_.updates.find(parameter.name);
  if (updates != scalars_.updates.end() && updates->second > 0)
    wanted.insert(wanted.end(), parameter.fields.begin(), parameter.fields.end());
  std::erase_if(wanted, [](const StateTensor& each) { return is_value(each.key.kind); });
  std::vector<std::size_t> there = given(parameter.name);
  std::erase_if(there, [&](std::size_t each) { return is_value(given_[each].key.kind); });
  const auto optimizer = scalars_.optimizers.find(parameter.name);
  const bool same = optimizer == scalars_.optimizers.end() || same_state(optimizer->second, parameter.optimizer);
  const bool all =
      same && there.size() == wanted.size() && std::ranges::all_of(wanted, [&](const auto& each) { return has(each); });
  if (!all && options_.allow_new_optimizer) return false;
  for (const std::size_t tensor : there) pass(tensor);
  return true;
}

std::vector<double> AdaptedSource::wide(const Origin& origin, std::int64_t begin, std::int64_t end) {
  const auto values_of = [&](std::size_t tensor) {
    const Dtype dtype = given_[tensor].dtype;
    std::vector<char> values(bytes_of(end - begin, dtype));
    source_.read(tensor, begin, end, values.data());
    std::vector<double> wide(static_cast<std::size_t>(end - begin));
    convert_elements(values.data(), dtype, wide.data(), Dtype::f64, end - begin);
    return wide;
  };
  std::vector<double> sum = values_of(origin.main);
  if (origin.rest) std::ranges::transform(sum, values_of(*origin.rest), sum.begin(), std::plus<>());
  return sum;
}

void AdaptedSource::read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) {
  const Origin& origin = origins_[tensor];
  if (!origin.converted) return source_.read(origin.main, begin, end, values);
  const StateTensor& described = tensors_[tensor];
  for (std::int64_t first = begin; first < end; first += kConverted) {
    const std::int64_t last = std::min(first + kConverted, end);
    put(wide(origin, first, last), described, at_element(values, first - begin, described.dtype));
  }
}

}  // namespace zero

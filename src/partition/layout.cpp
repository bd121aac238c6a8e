#include "zero/layout.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <unordered_set>

#include "base/elements.h"
#include "zero/error.h"

namespace zero {

namespace {

constexpr int kCommonRanks = 64;              // powers of two up to here share one length
constexpr std::int64_t kCommonLength = 1024;  // which is a multiple of this
constexpr std::int64_t kSliceAlign = 16;      // kCommonLength / kCommonRanks

std::int64_t length_multiple(int ranks, std::int64_t slice) {
  const bool common = ranks <= kCommonRanks && std::has_single_bit(static_cast<unsigned>(ranks));
  return std::max(common ? kCommonLength : kSliceAlign * ranks, slice * ranks);
}

void check(std::span<const ParameterSpec> parameters, int ranks) {
  std::string faults;
  const auto fault = [&](const std::string& sentence) { faults += (faults.empty() ? "" : "; ") + sentence; };
  if (ranks < 1) fault("a group has at least 1 rank, not " + std::to_string(ranks));
  std::unordered_set<std::string_view> seen;
  for (const ParameterSpec& spec : parameters) {
    if (spec.name.empty()) fault("a parameter of unit '" + spec.unit + "' has no name");
    if (spec.numel < 0) fault("parameter '" + spec.name + "' has " + std::to_string(spec.numel) + " elements");
    if (!seen.insert(spec.name).second) fault("two parameters are named '" + spec.name + "'");
  }
  if (!faults.empty()) throw ConfigError("no layout: " + faults);
}

// The parameters of one unit-to-be, by index; `first` is the unit's first group.
struct Group {
  const ParameterSpec* first;
  std::vector<int> members;
};

std::vector<Group> grouped(std::span<const ParameterSpec> parameters) {
  std::vector<Group> groups;
  std::unordered_map<std::string_view, std::vector<std::size_t>> of_unit;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ParameterSpec& spec = parameters[i];
    std::vector<std::size_t>& candidates = of_unit[spec.unit];
    const auto found = std::ranges::find_if(candidates, [&](std::size_t g) {
      return groups[g].first->dtype == spec.dtype && groups[g].first->trainable == spec.trainable;
    });
    const std::size_t g = found != candidates.end() ? *found : groups.size();
    if (found == candidates.end()) {
      groups.push_back({&spec, {}});
      candidates.push_back(g);
    }
    groups[g].members.push_back(static_cast<int>(i));
  }
  return groups;
}

// The unit's own name for its first group; for a later one also what sets it apart from the first.
std::vector<std::string> named(const std::vector<Group>& groups) {
  std::unordered_map<std::string_view, const ParameterSpec*> heads;
  std::unordered_set<std::string> taken;
  for (const Group& group : groups) {
    heads.emplace(group.first->unit, group.first);
    taken.insert(group.first->unit);
  }
  std::vector<std::string> names;
  for (const Group& group : groups) {
    const ParameterSpec& head = *heads.at(group.first->unit);
    std::string text = head.unit;
    if (group.first->dtype != head.dtype) text += "#" + std::string(name(group.first->dtype));
    if (group.first->trainable != head.trainable) text += group.first->trainable ? "#trainable" : "#frozen";
    while (&head != group.first && !taken.insert(text).second) text += "#";
    names.push_back(std::move(text));
  }
  return names;
}

}  // namespace

UnitLayout::UnitLayout(std::string name, Dtype dtype, bool trainable, const MeshShape& mesh)
    : name_(std::move(name)), dtype_(dtype), trainable_(trainable), mesh_(mesh) {}

void UnitLayout::append(const ParameterSpec& spec, int index) {
  const std::int64_t begin = slots_.empty() ? 0 : round_up(slots_.back().end(), kAlign);
  slots_.push_back({spec.name, begin, spec.numel, index});
  numel_ += spec.numel;
  read_in_backward_ |= spec.read_in_backward && spec.numel > 0;
}

void UnitLayout::seal(std::int64_t slice) {
  if (numel_ > 0) length_ = round_up(round_up(slots_.back().end(), kAlign), length_multiple(ranks(), slice));
}

Slice UnitLayout::slice(Axis over, int rank) const {
  const std::int64_t count = length_ / mesh_.size(over);
  return {count * (over == Axis::data ? mesh_.slice_of(rank) : mesh_.at(over, rank)), count};
}

std::vector<Piece> UnitLayout::pieces(int rank) const {
  const Slice mine = slice(Axis::data, rank);
  return pieces_between(mine.begin, mine.end());
}

std::vector<Piece> UnitLayout::pieces() const {
  return pieces_between(0, length_);
}

std::vector<Piece> UnitLayout::pieces_between(std::int64_t begin, std::int64_t end) const {
  std::vector<Piece> pieces;
  auto slot = std::ranges::partition_point(slots_, [&](const Slot& s) { return s.end() <= begin; });
  for (; slot != slots_.end() && slot->begin < end; ++slot) {
    if (slot->numel == 0) continue;
    const int index = static_cast<int>(slot - slots_.begin());
    pieces.push_back({index, std::max(begin, slot->begin), std::min(end, slot->end())});
  }
  return pieces;
}

std::vector<Range> UnitLayout::owned(int rank) const {
  std::vector<Range> ranges;
  for (const Piece& piece : pieces(rank)) {
    const Slot& slot = slots_[static_cast<std::size_t>(piece.slot)];
    ranges.push_back({slot.name, piece.begin - slot.begin, piece.end - slot.begin});
  }
  return ranges;
}

std::vector<std::pair<std::int64_t, std::int64_t>> UnitLayout::gaps() const {
  std::vector<std::pair<std::int64_t, std::int64_t>> gaps;
  std::int64_t covered = 0;
  const auto reach = [&](std::int64_t begin, std::int64_t end) {
    if (begin > covered) gaps.emplace_back(covered, begin);
    covered = end;
  };
  for (const Slot& slot : slots_) {
    if (slot.numel > 0) reach(slot.begin, slot.end());
  }
  reach(length_, length_);
  return gaps;
}

Layout::Layout(std::span<const ParameterSpec> parameters, const MeshShape& mesh, std::int64_t slice)
    : mesh_(mesh), locations_(parameters.size()) {
  check(parameters, ranks());
  const std::vector<Group> groups = grouped(parameters);
  std::vector<std::string> names = named(groups);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    UnitLayout& unit =
        units_.emplace_back(std::move(names[g]), groups[g].first->dtype, groups[g].first->trainable, mesh);
    for (const int index : groups[g].members) {
      const ParameterSpec& spec = parameters[static_cast<std::size_t>(index)];
      locations_[static_cast<std::size_t>(index)] = {static_cast<int>(g), static_cast<int>(unit.slots().size())};
      index_.emplace(spec.name, index);
      unit.append(spec, index);
    }
    unit.seal(slice);
    numel_ += unit.numel();
    length_ += unit.length();
  }
}

Layout::Location Layout::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) throw ConfigError("no parameter is named '" + std::string(name) + "'");
  return at(found->second);
}

int Layout::owner(std::string_view name, std::int64_t element) const {
  const Location where = find(name);
  const UnitLayout& unit = units_[static_cast<std::size_t>(where.unit)];
  const Slot& slot = unit.slot(where.slot);
  if (element < 0 || element >= slot.numel) {
    throw ConfigError("parameter '" + slot.name + "' has no element " + std::to_string(element),
                      "it has " + std::to_string(slot.numel));
  }
  return mesh_.owner_of(static_cast<int>((slot.begin + element) / unit.shard_length()));
}

}  // namespace zero

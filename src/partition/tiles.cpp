#include "partition/tiles.h"

#include <algorithm>

namespace zero {
namespace {

using Parts = std::map<std::string, std::vector<Tiles::const_iterator>>;  // by the whole's name, the first rows first

Parts parts_of(const Tiles& tiles) {
  Parts parts;
  for (auto tile = tiles.begin(); tile != tiles.end(); ++tile) parts[tile->second.whole].push_back(tile);
  for (auto& [whole, its] : parts)
    std::ranges::sort(its, {}, [](Tiles::const_iterator tile) { return tile->second.begin; });
  return parts;
}

// Whether a tile's tensor is `rows` of the whole's, or a number that all tiles have.
bool divides(const StateTensor& tensor, std::size_t dim, std::int64_t rows) {
  switch (tensor.key.kind) {
    case StateKind::scale:
    case StateKind::column:
    case StateKind::buffer: return false;
    case StateKind::moment:
      if (tensor.dtype == Dtype::u8) return false;
      [[fallthrough]];
    default: return tensor.shape.empty() || (dim < tensor.shape.size() && tensor.shape[dim] == rows);
  }
}

// A tensor of other rows, with `wanted` of them.
StateTensor with_rows(StateTensor tensor, std::size_t dim, const std::string& name, std::int64_t wanted) {
  tensor.key.name = name;
  if (!tensor.shape.empty()) tensor.shape[dim] = wanted;
  return tensor;
}

// Where the tile's elements are in a tensor of the whole's.
Stretches stretches_in(const StateTensor& whole, const Tile& tile) {
  if (whole.shape.empty()) return {};
  const std::vector<std::int64_t> inner(whole.shape.begin() + static_cast<std::ptrdiff_t>(tile.dim) + 1,
                                        whole.shape.end());
  const std::int64_t row = elements_of(inner);
  return {tile.begin * row, tile.rows / tile.blocks * row, tile.all / tile.blocks * row};
}

// Of a tile; none where nothing is told of it.
std::optional<std::string> optimizer_of(const StateScalars& scalars, const std::string& name) {
  const auto found = scalars.optimizers.find(name);
  return found == scalars.optimizers.end() ? std::nullopt : std::optional(found->second);
}

// The counts of updates and the optimizers, as those of whole parameters; returns the names of these.
std::vector<std::string> join_updates(StateScalars& scalars, const Parts& parts) {
  auto& updates = scalars.updates;
  std::vector<std::string> names;
  for (const auto& [whole, its] : parts) {
    const auto first = updates.find(its.front()->first);
    if (first == updates.end()) continue;
    const std::int64_t count = first->second;
    const std::optional<std::string> optimizer = optimizer_of(scalars, its.front()->first);
    std::int64_t rows = 0;
    for (const Tiles::const_iterator tile : its) rows += tile->second.rows;
    const bool equal = std::ranges::all_of(its, [&](Tiles::const_iterator tile) {
      const auto found = updates.find(tile->first);
      return found != updates.end() && found->second == count && optimizer_of(scalars, tile->first) == optimizer;
    });
    if (!equal || (rows != its.front()->second.all && !its.front()->second.cut)) continue;
    for (const Tiles::const_iterator tile : its) {
      updates.erase(tile->first);
      scalars.optimizers.erase(tile->first);
    }
    updates.emplace(whole, count);
    if (optimizer) scalars.optimizers.emplace(whole, *optimizer);
    names.push_back(whole);
  }
  return names;
}

}  // namespace

JoinedState joined(const std::vector<StateTensor>& tensors, StateScalars& scalars, const Tiles& tiles) {
  const std::vector<std::string> names = join_updates(scalars, parts_of(tiles));
  const auto whole_of = [&](const StateTensor& tensor) -> const Tile* {
    const auto tile = tiles.find(tensor.key.name);
    const bool joins = tile != tiles.end() && divides(tensor, tile->second.dim, tile->second.rows) &&
                       std::ranges::binary_search(names, tile->second.whole);
    return joins ? &tile->second : nullptr;
  };
  std::map<StateKey, std::int64_t> rows;  // that are there, by the whole's key
  for (const StateTensor& each : tensors)
    if (const Tile* tile = whole_of(each)) rows[{tile->whole, each.key.kind, each.key.part}] += tile->rows;
  JoinedState state;
  std::map<StateKey, std::size_t> index;
  for (const StateTensor& each : tensors) {
    const Tile* const tile = whole_of(each);
    if (tile == nullptr || (!tile->cut && rows.at({tile->whole, each.key.kind, each.key.part}) != tile->all)) {
      state.places.push_back(JoinedState::Place{.tensor = state.tensors.size()});
      state.tensors.push_back(each);
      continue;
    }
    const StateTensor whole = with_rows(each, tile->dim, tile->whole, tile->all);
    const auto [at, fresh] = index.emplace(whole.key, state.tensors.size());
    if (fresh) state.tensors.push_back(whole);
    const bool told = !each.shape.empty() || tile->begin == 0;
    state.places.push_back(told ? std::optional(JoinedState::Place{at->second, stretches_in(whole, *tile), tile->cut})
                                : std::nullopt);
  }
  return state;
}

TiledSource::TiledSource(StateSource& source, const Tiles& tiles) : source_(source), scalars_(source.scalars()) {
  const Parts parts = parts_of(tiles);
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const StateTensor& tensor = source.tensors()[i];
    const auto found = tensor.key.kind == StateKind::buffer ? parts.end() : parts.find(tensor.key.name);
    if (found != parts.end()) {
      add(i, found->second);
    } else {
      tensors_.push_back(tensor);
      origins_.push_back({.tensor = i});
    }
  }
  for (const auto& [whole, its] : parts) {
    if (const auto count = scalars_.updates.extract(whole))
      for (const Tiles::const_iterator tile : its) scalars_.updates.emplace(tile->first, count.mapped());
    if (const auto optimizer = scalars_.optimizers.extract(whole))
      for (const Tiles::const_iterator tile : its) scalars_.optimizers.emplace(tile->first, optimizer.mapped());
    if (const auto history = scalars_.float8.extract(whole))
      for (const Tiles::const_iterator tile : its) scalars_.float8.emplace(tile->first, history.mapped());
  }
}

// What cannot be divided goes on as the first tile's, which then has another tensor than is expected.
void TiledSource::add(std::size_t tensor, const std::vector<Tiles::const_iterator>& tiles) {
  const StateTensor& whole = source_.tensors()[tensor];
  const bool divided = divides(whole, tiles.front()->second.dim, tiles.front()->second.all);
  for (const Tiles::const_iterator tile : tiles) {
    StateTensor part = with_rows(whole, tile->second.dim, tile->first, tile->second.rows);
    if (!divided) part.shape = whole.shape;
    tensors_.push_back(std::move(part));
    origins_.push_back({.tensor = tensor, .stretches = divided ? stretches_in(whole, tile->second) : Stretches{}});
    if (!divided) break;
  }
}

}  // namespace zero

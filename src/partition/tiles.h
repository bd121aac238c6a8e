// Parameters that are parts of a larger one, and the state of that one made of theirs, or theirs of it. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "partition/element_order.h"
#include "zero/state.h"

namespace zero {

// Rows [begin, begin + rows) of the `all` that the parameter `whole` would have, along dimension `dim`. Of a parameter
// that is cut over a tensor axis other ranks have the rest, under the same name; where it is cut in blocks, of each
// block as many rows from the same one on, `begin` being in the first.
struct Tile {
  std::string whole;
  std::int64_t begin = 0, rows = 0, all = 0;
  std::size_t dim = 0;
  bool cut = false;
  std::int64_t blocks = 1;
};
// By the name of the parameter that is the tile.
using Tiles = std::map<std::string, Tile>;

// What is told of a state whose tensors are tiles'.
struct JoinedState {
  struct Place {
    std::size_t tensor = 0;    // among `tensors`
    Stretches stretches = {};  // where the tile's elements are in it
    bool cut = false;          // see Tile
  };
  std::vector<StateTensor> tensors;
  std::vector<std::optional<Place>> places;  // of the tensors given; none: what another tile has is told for all
};
// The tensors of tiles as those of the whole parameter, where all tiles have theirs; a tile's own stay what belongs to
// no row, or would mean something else there: 8-bit moments and their scales, Adafactor's means of columns. Of numbers
// without elements the first tile's is the whole's. In `scalars` the whole has been updated as often as its tiles, and
// by their optimizer; where these differ nothing of it is joined.
JoinedState joined(const std::vector<StateTensor>& tensors, StateScalars& scalars, const Tiles& tiles);

// The state of a source, whole parameters being told as tiles. The source stays. One thread.
class TiledSource final : public StateSource {
 public:
  TiledSource(StateSource& source, const Tiles& tiles);

  const StateScalars& scalars() const override { return scalars_; }
  const std::vector<StateTensor>& tensors() const override { return tensors_; }
  void read(std::size_t tensor, std::int64_t begin, std::int64_t end, void* values) override {
    const JoinedState::Place& origin = origins_[tensor];
    const std::int64_t item = size_of(tensors_[tensor].dtype);
    origin.stretches.each(begin, end, [&](std::int64_t first, std::int64_t last, std::int64_t at) {
      source_.read(origin.tensor, first, last, static_cast<char*>(values) + at * item);
    });
  }

 private:
  void add(std::size_t tensor, const std::vector<Tiles::const_iterator>& tiles);

  StateSource& source_;
  StateScalars scalars_;
  std::vector<StateTensor> tensors_;
  std::vector<JoinedState::Place> origins_;
};

}  // namespace zero

// Numbers and texts of all ranks. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "zero/communicator.h"

namespace zero {

inline std::vector<std::int64_t> gather_numbers(const Communicator& communicator, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather({&mine, 1, Dtype::i64}, {all.data(), communicator.size(), Dtype::i64}).wait();
  return all;
}

// By rank. Collective.
inline std::vector<std::string> gather_texts(const Communicator& communicator, std::string mine) {
  const std::vector<std::int64_t> sizes = gather_numbers(communicator, static_cast<std::int64_t>(mine.size()));
  const std::int64_t longest = *std::ranges::max_element(sizes);
  std::vector<std::string> texts;
  std::string all(static_cast<std::size_t>(longest) * sizes.size(), '\0');
  mine.resize(static_cast<std::size_t>(longest));
  if (longest > 0)
    communicator
        .all_gather({mine.data(), longest, Dtype::u8}, {all.data(), static_cast<std::int64_t>(all.size()), Dtype::u8})
        .wait();
  for (std::size_t rank = 0; rank < sizes.size(); ++rank)
    texts.push_back(all.substr(rank * static_cast<std::size_t>(longest), static_cast<std::size_t>(sizes[rank])));
  return texts;
}

}  // namespace zero

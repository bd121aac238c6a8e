// Which bytes of files that grow are whose. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

namespace zero {

class DiskSpace {
 public:
  // `bytes` that nobody has, from a multiple of `alignment` on: the first that fit, else at the end, which `grow` is
  // told of before. What it throws leaves all as it was.
  std::int64_t take(std::int64_t bytes, std::int64_t alignment, const std::function<void(std::int64_t end)>& grow);
  void give(std::int64_t at, std::int64_t bytes);

 private:
  std::map<std::int64_t, std::int64_t> free_;  // where ranges begin and end, none beside another
  std::int64_t end_ = 0;
};

}  // namespace zero

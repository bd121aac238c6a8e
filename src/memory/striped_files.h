// A line of bytes over several files, of which stripes go round robin. No torch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "memory/disk_files.h"

namespace zero {

class StripedFiles {
 public:
  StripedFiles(std::vector<DiskFile> files, std::int64_t stripe) : files_(std::move(files)), stripe_(stripe) {}

  const std::vector<DiskFile>& files() const { return files_; }

  struct Spot {
    const DiskFile& file;
    std::int64_t at;
  };
  Spot spot(std::int64_t at) const {
    const std::int64_t stripe = at / stripe_;
    return {files_[static_cast<std::size_t>(stripe % count())], stripe / count() * stripe_ + at % stripe_};
  }
  // How far bytes from here on lie in one piece.
  std::int64_t end_of_stripe(std::int64_t at) const {
    return count() == 1 ? std::numeric_limits<std::int64_t>::max() : (at / stripe_ + 1) * stripe_;
  }
  // Where a block of so many bytes is to begin, so that its operations are not cut more than they must be.
  std::int64_t alignment(std::int64_t bytes) const { return count() > 1 && bytes >= stripe_ ? stripe_ : kDiskPage; }

  // Of all files or, where one throws, of none.
  void reserve(std::int64_t end) {
    std::vector<std::int64_t> before;
    for (const DiskFile& file : files_) before.push_back(file.size());
    try {
      for (std::int64_t i = 0; i < count(); ++i) files_[static_cast<std::size_t>(i)].reserve(share(i, end));
    } catch (...) {
      for (std::size_t i = 0; i < files_.size(); ++i) files_[i].give_back(before[i]);
      throw;
    }
  }

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(files_.size()); }
  // Of the first `end` bytes of the line, those of a file.
  std::int64_t share(std::int64_t file, std::int64_t end) const {
    if (count() == 1) return end;
    const std::int64_t whole = end / stripe_, here = (whole + count() - 1 - file) / count();
    return here * stripe_ + (whole % count() == file ? end % stripe_ : 0);
  }

  std::vector<DiskFile> files_;
  std::int64_t stripe_;
};

}  // namespace zero

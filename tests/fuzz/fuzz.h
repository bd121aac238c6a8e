// What the fuzz targets have in common.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/system_files.h"
#include "zero/error.h"

namespace zero::fuzz {

// Ends the process, which libFuzzer reports with the input.
inline void require(bool holds) {
  if (!holds) __builtin_trap();
}

// Of what is done with an input nothing else may come than a result or an error of the library's.
void result_or_error(auto&& action) {
  try {
    action();
  } catch (const Error& error) {
    require(!std::string_view(error.what()).empty());
  }
}

// An input, for parsers that take a path. It lies in memory.
class InputFile {
 public:
  InputFile() : file_(::memfd_create("input", MFD_CLOEXEC)) {
    if (!file_) throw std::runtime_error("no file in memory");
  }

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }
  void write(const std::uint8_t* data, std::size_t size) const {
    const bool written =
        ::ftruncate(file_.get(), 0) == 0 && ::pwrite(file_.get(), data, size, 0) == static_cast<ssize_t>(size);
    if (!written) throw std::runtime_error("no room for a file in memory");
  }

 private:
  Descriptor file_;
};

}  // namespace zero::fuzz

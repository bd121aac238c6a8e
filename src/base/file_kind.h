// What lies at a path where a file is wanted.
#pragma once

#include <sys/stat.h>

namespace zero {

// In words; null where it is a regular file.
inline const char* other_than_file(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return nullptr;
    case S_IFDIR: return "a folder";
    case S_IFIFO: return "a pipe";
    case S_IFSOCK: return "a socket";
    default: return "a device";
  }
}

}  // namespace zero

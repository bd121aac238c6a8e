// A file whose lock tells whether somebody is at work in its folder. No torch.
#pragma once

#include <string>

#include "persist/env.h"

namespace zero {

// As the system's.
using Flock = int (*)(int descriptor, int operation);

// As Env::lock(). Opened to write where that is allowed, since network file systems lock nothing else, else to read. A
// file that is made may be written by whoever may write its folder. Where the file system has no locks it throws, or,
// by ZERO_CHECKPOINT_LOCK=0, gives a lock that keeps nobody out.
Env::Lock lock_file(const std::string& path, Flock flock);

}  // namespace zero

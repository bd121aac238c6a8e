// What the system refuses, in words.
#pragma once

#include <string>

namespace cli {

// Throws zero::Error: `what` could not be done, by errno's value `error`, and what to change about that.
[[noreturn]] void refuse(const std::string& what, int error);

}  // namespace cli

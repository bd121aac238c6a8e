// What commands end with, beside 0 and, of `zero launch`, the code of a rank.
#pragma once

namespace cli {

inline constexpr int kFailed = 1;   // while it ran
inline constexpr int kUsage = 2;    // it cannot work as it was given
inline constexpr int kStopped = 3;  // a run was asked to stop, and saved

}  // namespace cli

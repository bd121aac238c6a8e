#include "cli/processes/session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/system_files.h"

namespace cli {
namespace {

constexpr const char* kGroup = "/proc/self/autogroup";

// "/autogroup-14 nice 5"; 0 where the kernel has no such groups.
int niceness_of_group() {
  std::ifstream in(kGroup);
  std::string name, word;
  int niceness = 0;
  return in >> name >> word >> niceness ? niceness : 0;
}

}  // namespace

OwnSession::OwnSession() {
  const int niceness = std::clamp(niceness_of_group() + ::getpriority(PRIO_PROCESS, 0), -20, 19);
  if (niceness != 0) niceness_ = std::to_string(niceness);
}

void OwnSession::enter() const {
  ::setsid();
  if (!niceness_.empty()) set_niceness();
}

// Who is not root may do so once in a tenth of a second, whoever did it last. A rank that may not is as nice as others.
void OwnSession::set_niceness() const {
  constexpr int tries = 100, milliseconds = 20;
  for (int i = 0; i < tries; ++i) {
    const zero::Descriptor group(::open(kGroup, O_WRONLY | O_CLOEXEC));
    if (!group || ::write(group.get(), niceness_.data(), niceness_.size()) >= 0 || errno != EAGAIN) return;
    ::poll(nullptr, 0, milliseconds);
  }
}

}  // namespace cli

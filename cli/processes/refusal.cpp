#include "cli/processes/refusal.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "zero/error.h"

namespace cli {
namespace {

std::string limit(decltype(RLIMIT_NOFILE) kind) {
  rlimit limit{};
  if (::getrlimit(kind, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return " (now " + std::to_string(limit.rlim_cur) + ")";
}

std::string hint(int error) {
  switch (error) {
    case EMFILE: return "start fewer ranks, or raise the limit on open files: ulimit -n" + limit(RLIMIT_NOFILE);
    case ENFILE: return "start fewer ranks: all files that the system can hold open are in use";
    case EAGAIN: return "start fewer ranks, or raise the limit on processes: ulimit -u" + limit(RLIMIT_NPROC);
    case ENOMEM: return "start fewer ranks, or free memory";
    default: return "";
  }
}

}  // namespace

void refuse(const std::string& what, int error) {
  throw zero::Error(what + ": " + std::strerror(error), hint(error));
}

}  // namespace cli

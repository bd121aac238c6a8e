// Every failure of the library is an exception derived from zero::Error. The library never prints,
// exits or aborts. The text says what happened and where (rank, operation, parameter); hint() says
// what to change, and what() carries both.
#pragma once

#include <stdexcept>
#include <string>

namespace zero {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, std::string hint = {})
      : std::runtime_error(hint.empty() ? what : what + " (" + hint + ")"), hint_(std::move(hint)) {}

  const char* what() const noexcept override { return named_.empty() ? std::runtime_error::what() : named_.c_str(); }
  // What the caller can change; empty when nothing sensible can be said.
  const std::string& hint() const noexcept { return hint_; }
  // Says on which rank it failed, where the text names none.
  void name_rank(int rank) {
    const std::string text = what();
    for (auto at = text.find("rank "); at != text.npos; at = text.find("rank ", at + 1))
      if (const char next = text[at + 5]; next >= '0' && next <= '9') return;
    named_ = "rank " + std::to_string(rank) + ": " + text;
  }

 private:
  std::string hint_;
  std::string named_;  // the text with the rank; empty: as it is
};

// A plan, an option, an environment variable or an argument that cannot work.
class ConfigError : public Error {
 public:
  using Error::Error;
};

// A call out of order, or a parameter changed behind the engine's back.
class StateError : public Error {
 public:
  using Error::Error;
};

// A collective that failed: a peer died, a timeout passed, or the ranks called different operations.
class CommError : public Error {
 public:
  using Error::Error;
};

// A device that has no memory left. Where a forward or a backward met it, the step can be done again after
// Engine::discard(); the text says which plans need less.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// A checkpoint, or another file of state, that cannot be written or read, or that is not what was written.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

}  // namespace zero

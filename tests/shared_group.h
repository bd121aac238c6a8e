// Threads as ranks that share memory as processes do: each maps it for itself.
#pragma once

#include <future>
#include <memory>
#include <string>

#include "comm/shared.h"
#include "comm_fixture.h"
#include "zero/error.h"

namespace zero::test {

// `more`: what else a rank is joined by.
inline MakeRank shared_group_with(int size, Timeout timeout,
                                  const std::function<void(int rank, SharedMemoryOptions&)>& more) {
  const auto notice = std::make_shared<std::promise<std::string>>();
  const std::shared_future<std::string> name = notice->get_future().share();
  return [=](int rank) {
    SharedMemoryOptions options{timeout};
    options.publish = [&](const std::string& text) { notice->set_value(text); };
    options.look_up = [&] {
      if (name.wait_for(timeout) != std::future_status::ready) throw CommError("nobody published a name");
      return name.get();
    };
    more(rank, options);
    return shared_memory_communicator(rank, size, options);
  };
}

inline MakeRank shared_group(int size, Timeout timeout) {
  return shared_group_with(size, timeout, [](int, SharedMemoryOptions&) {});
}

inline constexpr Backend kShared{"shared", shared_group, Timeout(200), 140'003, 4032};

}  // namespace zero::test

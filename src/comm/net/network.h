// The library's own transport between hosts: messages over one stream a pair of ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/messages.h"
#include "comm/net/links.h"

namespace zero {

// The ranks `members` of the links, in that order, as a group; every rank gives it the same name, which no other of its
// groups has.
std::shared_ptr<CommunicatorImpl> network_communicator(std::shared_ptr<Links> links, const std::string& name,
                                                       std::vector<int> members, int rank,
                                                       const MessageOptions& options);

}  // namespace zero

// What a communicator that stands before another one passes on as it is. No torch.
#pragma once

#include <memory>
#include <utility>

#include "zero/communicator.h"

namespace zero {

class Decorated : public CommunicatorImpl {
 public:
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view backend() const override { return inner_->backend(); }
  std::chrono::milliseconds time_limit() const override { return inner_->time_limit(); }
  Topology topology() const override { return inner_->topology(); }
  std::shared_ptr<void> own_memory(std::int64_t bytes) override { return inner_->own_memory(bytes); }
  std::shared_ptr<void> common_memory(std::int64_t bytes) override { return inner_->common_memory(bytes); }

 protected:
  explicit Decorated(std::shared_ptr<CommunicatorImpl> inner) : inner_(std::move(inner)) {}
  CommunicatorImpl& inner() const { return *inner_; }

 private:
  std::shared_ptr<CommunicatorImpl> inner_;
};

}  // namespace zero

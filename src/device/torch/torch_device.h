// What LibTorch's own operators do on any of its devices: memory, copies, kernels over arrays. What is left are the
// library's own kernels, which those who derive from it launch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <array>
#include <mutex>

#include "device/device.h"

namespace zero {

// Memory of a device as a tensor of one dimension, which does not own it.
at::Tensor tensor_at(c10::Device where, const void* data, at::ScalarType dtype, std::int64_t count);

class TorchDevice : public Device {
 public:
  // Which is there for LibTorch from then on: its allocator knows no device before it is initialized.
  explicit TorchDevice(c10::Device where);

  std::string name() const override { return where_.str(); }
  int index() const override { return where_.index(); }

  std::unique_ptr<SideStream> side_stream() override;
  Memory memory() const override;
  void trim() override;
  // From LibTorch's allocator.
  std::unique_ptr<Block::Place> take(std::size_t bytes, Use use) override;
  std::unique_ptr<Arena> arena(std::size_t bytes) override;
  std::unique_ptr<Block::Place> take_of_host(std::size_t bytes) override;
  std::unique_ptr<Block::Place> borrowed(void* memory) override;
  void follow(Pending operation) override;
  Pending bring(void* host, const void* from, std::int64_t bytes) override;
  Pending send(void* to, const void* host, std::int64_t bytes) override;
  void follow_sends() override;
  void to_host(void* host, const void* from, std::int64_t bytes) override;
  void from_host(void* to, const void* host, std::int64_t bytes) override;
  void copy(void* to, const void* from, std::int64_t bytes) override;
  void zero(void* to, std::int64_t bytes) override;
  void run(const Kernel& kernel) final;

 protected:
  c10::Device where() const { return where_; }
  // A kernel of the library's own, on the current stream.
  virtual void launch(const OwnKernel& kernel) = 0;
  // On which copies go one way.
  virtual std::unique_ptr<SideStream> copy_stream();

 private:
  c10::DataPtr allocate(std::size_t bytes) const;
  at::Tensor bytes_at(const void* data, std::int64_t count) const;
  enum class Direction : std::uint8_t { down, up };
  std::shared_ptr<SideStream::Work> copied(Direction direction, const std::function<void()>& copy);

  c10::Device where_;
  std::mutex copying_;
  std::array<std::unique_ptr<SideStream>, 2> copies_;  // by direction; null before the first
};

}  // namespace zero

// What LibTorch's own operators do on any of its devices: memory, copies, conversions, sums of two arrays. What is left
// are the kernels of the library, which those who derive from it have.
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
  std::unique_ptr<Block::Place> lent(void* memory) override;
  void follow(Pending operation) override;
  Pending bring(void* host, const void* from, std::int64_t bytes) override;
  Pending send(void* to, const void* host, std::int64_t bytes) override;
  void follow_sends() override;
  void to_host(void* host, const void* from, std::int64_t bytes) override;
  void from_host(void* to, const void* host, std::int64_t bytes) override;
  void copy(void* to, const void* from, std::int64_t bytes) override;
  void zero(void* to, std::int64_t bytes) override;
  void fill(void* to, Dtype dtype, std::int64_t count, double value) override;
  void convert(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::int64_t count) override;
  void add(void* sum, Dtype sum_dtype, const void* addend, Dtype dtype, std::int64_t count) override;
  void multiply(void* values, Dtype dtype, std::int64_t count, double factor) override;

 protected:
  c10::Device where() const { return where_; }
  // On which copies go one way.
  virtual std::unique_ptr<SideStream> copy_stream();

 private:
  c10::DataPtr allocate(std::size_t bytes) const;
  at::Tensor tensor_at(const void* data, Dtype dtype, std::int64_t count) const;
  enum class Direction : std::uint8_t { down, up };
  std::shared_ptr<SideStream::Work> copied(Direction direction, const std::function<void()>& copy);

  c10::Device where_;
  std::mutex copying_;
  std::array<std::unique_ptr<SideStream>, 2> copies_;  // by direction; null before the first
};

}  // namespace zero

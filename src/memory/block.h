// Bytes in a store, which are memory that can be computed with or are read and written in pieces. No torch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "zero/communicator.h"
#include "zero/error.h"
#include "zero/pending.h"
#include "zero/tier_traffic.h"

namespace zero {

// A store that has no room, or whose bytes could not be read or written.
class StoreError : public Error {
 public:
  using Error::Error;
};

// A handle; the bytes are given back, and are no longer booked, when it ends. The store must outlive it, and no
// operation of it may be under way then.
//
// Offsets are in bytes from the block's beginning. The memory of a view stays valid until its Pending is waited for.
// Operations under way at the same time are carried out in any order, so none may write what another reads or writes.
//
// Thread-safety: different blocks may be used by different threads; a block is read by several, and else used by one at
// a time.
class Block {
 public:
  static constexpr int kHost = -1;

  // What a store has for it.
  class Place {
   public:
    virtual ~Place() = default;
    // Null where it is not addressable.
    virtual void* data() = 0;
    // Whose memory that is: as a View has it.
    virtual int device() const { return kHost; }
    // Of bytes that the block has. Their Pending throws what they failed with, a StoreError.
    virtual Pending read(std::int64_t at, View to) = 0;
    virtual Pending write(std::int64_t at, ConstView from) = 0;
  };

  // Is told of the bytes that read() and write() are asked for.
  using Count = std::function<void(const TierTraffic::Entry& moved)>;

  Block() = default;
  // `book` is told of the bytes now, and of their end.
  Block(std::unique_ptr<Place> place, std::int64_t bytes, std::function<void(std::int64_t bytes)> book,
        Count count = {});
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  ~Block() { reset(); }

  void reset();
  // Ends it, addressable, without giving the bytes back: they live as long as the result, and are no longer booked.
  std::shared_ptr<void> release();
  // For when who books is gone: ends without a word to them.
  void orphan() { book_ = nullptr; }
  explicit operator bool() const { return place_ != nullptr; }
  std::int64_t bytes() const { return bytes_; }

  bool addressable() const { return bytes_ == 0 || place_->data() != nullptr; }
  // Whether it is, by what computes on that device.
  bool lies_on(int device) const { return bytes_ == 0 || (place_->data() != nullptr && place_->device() == device); }
  // All of it, where it is addressable; it stays where it is as long as the block lives.
  View view() const {
    return place_ ? View{place_->data(), bytes_, Dtype::u8, place_->device()} : View{nullptr, bytes_, Dtype::u8};
  }

  // To the host's memory and from it. Throw StoreError for bytes that the block has not. Of one in the host's memory
  // they copy at once.
  Pending read(std::int64_t at, View to) const;
  Pending write(std::int64_t at, ConstView from);

 private:
  void require(std::int64_t at, std::int64_t bytes) const;

  std::unique_ptr<Place> place_;
  std::int64_t bytes_ = 0;
  std::function<void(std::int64_t)> book_;
  Count count_;
};

}  // namespace zero

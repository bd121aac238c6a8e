// The storages of a micro-batch whose memory can go and come (backwards/activation_window.h), by number. One is known
// by its data pointer, whose deleter and context are of here. Without memory, what reads it past operators, by
// data_ptr(), throws and says what to do.
//
// Thread-safety: one thread; a storage may end on any.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace zero {

class ActivationWindow;

// Of a tensor that has one.
inline c10::StorageImpl* impl_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

class TracedStorages {
 public:
  // What to do about a tensor that has to stay.
  static constexpr const char* kKeep = "give the tensor to zero::keep() in the forward, which keeps it as it is";

  // `window` is told of storages that end, on its thread.
  explicit TracedStorages(ActivationWindow& window) : window_(window) {}
  TracedStorages(const TracedStorages&) = delete;
  TracedStorages& operator=(const TracedStorages&) = delete;

  // The window that a tensor's storage is of, or null; its number, if it is of these.
  static ActivationWindow* window_of(const at::Tensor& tensor);
  std::optional<int> number_of(const at::Tensor& tensor) const;

  // Traces the storage of a result, under the next number; as long as it lives so does `window`. `allocated`: it was
  // given memory alone.
  void add(const at::Tensor& result, bool allocated, std::shared_ptr<ActivationWindow> window);
  // Its memory goes. `checks`: what comes back is to be compared.
  void drop(int number, bool checks);
  // Its memory is that of `from` from here on. False: it was to be compared, and has other values.
  [[nodiscard]] bool give(int number, const c10::Storage& from);
  // Whether `from` has the values that it had when it was dropped, where it was to be compared.
  bool alike(int number, const c10::Storage& from) const;
  // One with its memory: itself, or where nobody has it any more, another.
  c10::Storage get(int number) const;
  void* memory(int number) const { return at(number).memory.get(); }
  // Of the result that it was traced for.
  at::ScalarType dtype(int number) const { return at(number).dtype; }
  void free(int number) { at(number).memory.clear(); }
  // An operator has written so many bytes: true where with them all that was allocated alone is written.
  bool written(int number, std::size_t bytes);

  // How many live without memory.
  int missing() const { return missing_; }
  // Tells of those that have ended on other threads.
  void bury();
  // All have memory of their own again, but such as are missing. Nothing is told any more.
  void let_go() noexcept;
  bool gone() const { return gone_; }

  // Throws StateError on another thread than theirs.
  void require_here() const;
  bool here() const { return std::this_thread::get_id() == thread_; }
  void move_here() { thread_ = std::this_thread::get_id(); }

 private:
  struct Tag;
  struct Traced {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    c10::DataPtr memory;    // what the storage points at, or what is held
    std::size_t bytes = 0;  // of the storage
    at::ScalarType dtype = at::kByte;
    std::size_t checked = 0;              // of these, what has to come back
    std::size_t unwritten = 0;            // of memory that was allocated alone, what no operator has written
    std::optional<std::uint64_t> digest;  // of what was dropped
    bool missing = false;
  };

  static void end(void* tag);
  void ended(int number);
  Traced& at(int number) { return all_[static_cast<std::size_t>(number)]; }
  const Traced& at(int number) const { return all_[static_cast<std::size_t>(number)]; }

  ActivationWindow& window_;
  std::deque<Traced> all_;
  int missing_ = 0;
  bool gone_ = false;
  std::atomic<std::thread::id> thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::vector<int> ended_elsewhere_;
  std::atomic<bool> any_ended_elsewhere_ = false;
};

}  // namespace zero

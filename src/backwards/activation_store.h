// Where the values of activations are while they have no memory, where a budget's way is not to compute them again: on
// disks, in the host's memory, or in 8 bits.
//
// Thread-safety: one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "backwards/accounts.h"
#include "partition/stored_way.h"
#include "zero/plan.h"

namespace zero {

// What is to be stored: all bytes of a storage, which are values of this dtype.
struct StorageValues {
  void* data;
  std::int64_t bytes;
  at::ScalarType dtype;
};

// One activation's. When it ends, nothing is under way any more.
class StoredActivation {
 public:
  virtual ~StoredActivation() = default;
  // What it was made of may be overwritten, by what the thread does from here on.
  virtual void settle() = 0;
  // Begins to bring it back; once.
  virtual void fetch() = 0;
  // What fetch() has brought, for what the thread does from here on.
  virtual c10::Storage fetched() = 0;
};

class ActivationStore {
 public:
  // Of an engine's activations, by their row in its plan; null where that names none. Throws ConfigError for what is
  // none of the device's, or of the disks that the accounts have.
  static std::unique_ptr<ActivationStore> make(const Row& row, Accounts& accounts);

  virtual ~ActivationStore() = default;
  // With what it has taken so far.
  virtual StoredWay way() const = 0;
  // Bytes of memory that the tensor's storage takes while it is stored; none where that cannot be, or is not worth it.
  virtual std::optional<std::int64_t> stored_bytes(const at::Tensor& values) const = 0;
  // The values become what they are when they come back.
  virtual void round(const StorageValues& /*values*/) {}
  // Begins to store.
  virtual std::unique_ptr<StoredActivation> store(const StorageValues& values) = 0;
};

}  // namespace zero

#include "backwards/activation_store.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "backwards/activation_memory.h"
#include "base/codec.h"
#include "base/elements.h"
#include "device/torch/dtypes.h"
#include "zero/dtype.h"
#include "zero/error.h"

namespace zero {
namespace {

// Less is not worth a code.
constexpr std::int64_t kLeastCoded = 4 * 1024;

c10::Storage memory_for(std::int64_t bytes, c10::Device device) {
  return at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte)).storage();
}

std::optional<std::int64_t> moved(const at::Tensor& values) {
  if (static_cast<std::int64_t>(values.storage().nbytes()) < activation_trials().moved_from) return {};
  return 0;
}

std::int64_t nanoseconds_since(std::chrono::steady_clock::time_point began) {
  return (std::chrono::steady_clock::now() - began) / std::chrono::nanoseconds(1);
}

// -- On disks.

// Bytes that a disk has moved, and how long it took where it was waited for.
struct DiskRate {
  double nanoseconds = kUsualOfDisk / 2, bytes = 1;
  void add(std::int64_t took, std::int64_t moved) {
    nanoseconds += static_cast<double>(took);
    bytes += static_cast<double>(moved);
  }
};

class OnDisk final : public StoredActivation {
 public:
  OnDisk(Store& disk, DiskRate& rate, const StorageValues& values)
      : rate_(rate), block_(disk.take(values.bytes, Owner::activation)) {
    begin(block_.write(0, {values.data, values.bytes, Dtype::u8}));
  }
  ~OnDisk() override {
    try {
      settle();
    } catch (const std::exception&) {  // who needed it was told
    }
  }
  OnDisk(const OnDisk&) = delete;
  OnDisk& operator=(const OnDisk&) = delete;

  void settle() override {
    Pending last = std::exchange(under_way_, Pending());
    const bool awaited = !last.done();
    last.wait();
    if (awaited) rate_.add(nanoseconds_since(began_), block_.bytes());
  }
  void fetch() override {
    settle();
    memory_ = memory_for(block_.bytes(), at::kCPU);
    begin(block_.read(0, {memory_.mutable_data(), block_.bytes(), Dtype::u8}));
  }
  c10::Storage fetched() override {
    settle();
    return std::move(memory_);
  }

 private:
  void begin(Pending operation) {
    began_ = std::chrono::steady_clock::now();
    under_way_ = std::move(operation);
  }

  DiskRate& rate_;
  Block block_;
  c10::Storage memory_;
  Pending under_way_;
  std::chrono::steady_clock::time_point began_;
};

class Disks final : public ActivationStore {
 public:
  explicit Disks(Accounts& accounts) : disk_(accounts.store(State::optimizer, Tier::disk, {})) {}

  StoredWay way() const override { return {.nanoseconds_a_byte = 2 * rate_.nanoseconds / rate_.bytes}; }
  std::optional<std::int64_t> stored_bytes(const at::Tensor& values) const override { return moved(values); }
  std::unique_ptr<StoredActivation> store(const StorageValues& values) override {
    return std::make_unique<OnDisk>(*disk_, rate_, values);
  }

 private:
  std::unique_ptr<Store> disk_;
  DiskRate rate_;
};

// -- In the host's memory, of a device.

class OnHost final : public StoredActivation {
 public:
  OnHost(Accounts& accounts, const StorageValues& values)
      : accounts_(accounts), block_(accounts.take_of_host(values.bytes, Owner::activation)) {
    under_way_ = accounts_.borrowed(values.data, values.bytes, Owner::activation).read(0, block_.view());
  }
  ~OnHost() override {
    try {
      under_way_.wait();
    } catch (const std::exception&) {  // the device's failures are told of elsewhere
    }
  }
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

  void settle() override { accounts_.device().follow(under_way_); }
  void fetch() override {
    under_way_.wait();
    memory_ = memory_for(block_.bytes(), accounts_.where());
    under_way_ = accounts_.borrowed(memory_.data(), block_.bytes(), Owner::activation).write(0, block_.view());
  }
  c10::Storage fetched() override {
    settle();
    return std::move(memory_);
  }

 private:
  Accounts& accounts_;
  Block block_;
  c10::Storage memory_;
  Pending under_way_;
};

class HostMemory final : public ActivationStore {
 public:
  explicit HostMemory(Accounts& accounts) : accounts_(accounts) {}

  StoredWay way() const override { return {.nanoseconds_a_byte = kUsualOfLink}; }
  std::optional<std::int64_t> stored_bytes(const at::Tensor& values) const override { return moved(values); }
  std::unique_ptr<StoredActivation> store(const StorageValues& values) override {
    return std::make_unique<OnHost>(accounts_, values);
  }

 private:
  Accounts& accounts_;
};

// -- In 8 bits.

class Coded final : public StoredActivation {
 public:
  Coded(Accounts& accounts, Wire codec, const StorageValues& values)
      : accounts_(accounts),
        codec_(codec),
        dtype_(*dtype_of(values.dtype)),
        count_(values.bytes / size_of(dtype_)),
        codes_(memory_for(bytes_of_codes(codec, count_), accounts.where())) {
    accounts_.device().run(Encode{values.data, dtype_, data(), count_, codec_});
  }

  void settle() override {}
  void fetch() override {
    memory_ = memory_for(count_ * size_of(dtype_), accounts_.where());
    accounts_.device().run(Decode{data(), memory_.mutable_data(), dtype_, count_, codec_});
  }
  c10::Storage fetched() override { return std::move(memory_); }

 private:
  std::uint8_t* data() { return static_cast<std::uint8_t*>(codes_.mutable_data()); }

  Accounts& accounts_;
  Wire codec_;
  Dtype dtype_;
  std::int64_t count_;
  c10::Storage codes_, memory_;
};

class Codes final : public ActivationStore {
 public:
  Codes(Accounts& accounts, Wire codec) : accounts_(accounts), codec_(codec) {}

  // About what both ways take.
  StoredWay way() const override { return {.nanoseconds_a_byte = .5, .exact = false}; }
  std::optional<std::int64_t> stored_bytes(const at::Tensor& values) const override {
    const auto dtype = dtype_of(values.scalar_type());
    if (!dtype || *dtype == Dtype::f64 || values.nbytes() != values.storage().nbytes() ||
        static_cast<std::int64_t>(values.nbytes()) < std::min(kLeastCoded, activation_trials().moved_from))
      return {};
    return bytes_of_codes(codec_, values.numel());
  }
  void round(const StorageValues& values) override;
  std::unique_ptr<StoredActivation> store(const StorageValues& values) override {
    return std::make_unique<Coded>(accounts_, codec_, values);
  }

 private:
  Accounts& accounts_;
  Wire codec_;
};

// Piece by piece.
void Codes::round(const StorageValues& values) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;
  const Dtype dtype = *dtype_of(values.dtype);
  const std::int64_t count = values.bytes / size_of(dtype);
  const c10::Storage codes = memory_for(bytes_of_codes(codec_, std::min(count, kPiece)), accounts_.where());
  auto* const to = static_cast<std::uint8_t*>(codes.mutable_data());
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t some = std::min(kPiece, count - first);
    void* const at = at_element(values.data, first, dtype);
    accounts_.device().run(Encode{at, dtype, to, some, codec_});
    accounts_.device().run(Decode{to, at, dtype, some, codec_});
  }
}

}  // namespace

std::unique_ptr<ActivationStore> ActivationStore::make(const Row& row, Accounts& accounts) {
  const bool on_host = accounts.device().is_host();
  if (row.wire != Wire::native) return std::make_unique<Codes>(accounts, row.wire);
  if (row.tier == Tier::device) return nullptr;
  if (row.tier == Tier::disk && !on_host)
    throw ConfigError("activations of a model on a device do not go to disks", "let them go to the host");
  if (row.tier == Tier::host && on_host)
    throw ConfigError("activations of a model on the host are in its memory as it is",
                      "let them be computed again, or go to disks");
  if (row.tier == Tier::disk) return std::make_unique<Disks>(accounts);
  return std::make_unique<HostMemory>(accounts);
}

}  // namespace zero

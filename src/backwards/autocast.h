// LibTorch's autocast for the length of one operator. What the program set of it stays as it is, and what LibTorch's
// guards restore around their own calls (they save a thread's whole dispatch state) undoes nothing.
#pragma once

#include <ATen/autocast_mode.h>

#include <optional>

namespace zero {

// Operators on devices of a kind compute in a dtype.
struct Cast {
  at::DeviceType device;
  at::ScalarType dtype;
  c10::DispatchKey key() const { return at::autocast::get_autocast_dispatch_key_from_device_type(device); }
};

class AutocastScope {
 public:
  // None: changes nothing. The cache of cast weights is off: it would keep copies of parameters beyond their release.
  explicit AutocastScope(const std::optional<Cast>& cast) {
    if (!cast) return;
    before_ = Cast{cast->device, at::autocast::get_autocast_dtype(cast->device)};
    enabled_before_ = at::autocast::is_autocast_enabled(cast->device);
    cache_before_ = at::autocast::is_autocast_cache_enabled();
    set(*cast, true, false);
  }
  ~AutocastScope() {
    if (before_) set(*before_, enabled_before_, cache_before_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  static void set(const Cast& cast, bool enabled, bool cache) {
    at::autocast::set_autocast_enabled(cast.device, enabled);
    at::autocast::set_autocast_dtype(cast.device, cast.dtype);
    at::autocast::set_autocast_cache_enabled(cache);
  }

  std::optional<Cast> before_;  // where something was changed
  bool enabled_before_ = false;
  bool cache_before_ = true;
};

// Without it, as backwards run: in the dtypes of their forwards. None: changes nothing.
class AutocastOff {
 public:
  explicit AutocastOff(const std::optional<Cast>& cast) {
    if (!cast || !at::autocast::is_autocast_enabled(cast->device)) return;
    device_ = cast->device;
    at::autocast::set_autocast_enabled(*device_, false);
  }
  ~AutocastOff() {
    if (device_) at::autocast::set_autocast_enabled(*device_, true);
  }
  AutocastOff(const AutocastOff&) = delete;
  AutocastOff& operator=(const AutocastOff&) = delete;

 private:
  std::optional<at::DeviceType> device_;  // where it was on
};

}  // namespace zero

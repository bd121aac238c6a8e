// LibTorch's autocast for the length of one operator. What the program set of it stays as it is, and what LibTorch's
// guards restore around their own calls (they save a thread's whole dispatch state) undoes nothing.
#pragma once

#include <ATen/autocast_mode.h>

#include <optional>

namespace zero {

inline c10::DispatchKey autocast_key(at::DeviceType device) {
  return at::autocast::get_autocast_dispatch_key_from_device_type(device);
}

class AutocastScope {
 public:
  // None: changes nothing. The cache of cast weights is off: it would keep copies of parameters beyond their release.
  AutocastScope(at::DeviceType device, std::optional<at::ScalarType> dtype) : device_(device), on_(dtype.has_value()) {
    if (!on_) return;
    enabled_before_ = at::autocast::is_autocast_enabled(device_);
    dtype_before_ = at::autocast::get_autocast_dtype(device_);
    cache_before_ = at::autocast::is_autocast_cache_enabled();
    set(true, *dtype, false);
  }
  ~AutocastScope() {
    if (on_) set(enabled_before_, dtype_before_, cache_before_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  void set(bool enabled, at::ScalarType dtype, bool cache) const {
    at::autocast::set_autocast_enabled(device_, enabled);
    at::autocast::set_autocast_dtype(device_, dtype);
    at::autocast::set_autocast_cache_enabled(cache);
  }

  at::DeviceType device_;
  bool on_;
  bool enabled_before_ = false;
  at::ScalarType dtype_before_ = at::kBFloat16;
  bool cache_before_ = true;
};

}  // namespace zero

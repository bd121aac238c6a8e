#include "backwards/unwatched.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace zero {

Unwatched::Unwatched() : excluded_before_(c10::impl::tls_is_dispatch_key_excluded(kWatchKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kWatchKey, true);
}

Unwatched::~Unwatched() {
  c10::impl::tls_set_dispatch_key_excluded(kWatchKey, excluded_before_);
}

}  // namespace zero

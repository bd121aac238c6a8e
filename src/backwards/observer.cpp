#include "backwards/observer.h"

namespace zero {

std::string_view name(Activity activity) {
  switch (activity) {
    case Activity::forward: return "forward";
    case Activity::backward: return "backward";
    case Activity::step: return "step";
    case Activity::gather: return "gather";
    case Activity::reduce: return "reduce";
    case Activity::publish: return "publish";
    case Activity::direct: return "direct";
    case Activity::vote: return "vote";
    case Activity::read: return "read";
    case Activity::recompute: return "recompute";
    case Activity::store: return "store";
    case Activity::fetch: return "fetch";
  }
  return "?";
}

}  // namespace zero

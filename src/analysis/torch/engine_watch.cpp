#include "analysis/torch/engine_watch.h"

#include "analysis/torch/watched.h"

namespace zero {
namespace {

MemoryOwner owner_of(Owner owner) {
  switch (owner) {
    case Owner::parameter: return MemoryOwner::parameter;
    case Owner::gradient: return MemoryOwner::gradient;
    case Owner::optimizer: return MemoryOwner::optimizer;
    case Owner::activation: return MemoryOwner::activation;
    case Owner::gathered:
    case Owner::reduction:
    case Owner::snapshot:
    case Owner::update: break;
  }
  return MemoryOwner::communication;
}

bool ends_a_stretch(Activity activity) {
  return activity == Activity::forward || activity == Activity::backward || activity == Activity::step;
}

}  // namespace

EngineWatch::EngineWatch(Sinks sinks, std::vector<std::string> units)
    : sinks_(std::move(sinks)), units_(std::move(units)) {
  units_.insert(units_.begin(), std::string());
}

const std::string& EngineWatch::unit_name(int unit) const {
  return units_[static_cast<std::size_t>(unit + 1)];
}

void EngineWatch::begins(c10::Device device) {
  require_on(sinks_.device, device, "the engine's parameters are");
}

// A snapshot is in the host's memory, wherever the engine is.
void EngineWatch::booked(Owner owner, int unit, std::int64_t change) {
  if (owner == Owner::snapshot && !sinks_.device.is_cpu()) return;
  sinks_.log->booked(owner_of(owner), unit_name(unit), change);
}

void EngineWatch::adopted(const void* data) {
  sinks_.log->went(data);
}

int EngineWatch::began(Activity activity, int unit) {
  const int span = sinks_.log->open();
  const std::lock_guard lock(mutex_);
  begun_[span] = {activity, unit};
  return span;
}

EngineWatch::Begun EngineWatch::take(int ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = begun_.find(ticket);
  const Begun begun = found->second;
  begun_.erase(found);
  return begun;
}

void EngineWatch::ended(int ticket) noexcept {
  const Begun begun = take(ticket);
  if (ends_a_stretch(begun.activity) && std::this_thread::get_id() == home_) sinks_.settle();
  const MemoryLog::Span span = sinks_.log->close(ticket);
  const std::string activity(name(begun.activity));
  sinks_.history->add_phase(activity, span, sinks_.reserved());
  sinks_.history->add({activity, unit_name(begun.unit), sinks_.history->thread(), span.begin, span.end});
}

}  // namespace zero

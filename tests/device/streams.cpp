#include "device/streams.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace zero::test::accelerator {

Point Streams::enqueue(Key stream, Task task) {
  return push(stream, {std::move(task), std::nullopt});
}

void Streams::refuse_in_task() const {
  if (in_task_) throw std::logic_error("a task of the device must not use the device");
}

Point Streams::push(Key stream, Item item) {
  Queue& queue = queues_[stream];
  queue.items.push_back(std::move(item));
  busy_.insert(stream);
  const Point done{stream, ++queue.enqueued};
  if (eager && !in_task_) run(done);
  if (chance && !in_task_) run_by_chance();
  return done;
}

void Streams::run_by_chance() {
  while (!busy_.empty() && (*chance)() % 4 != 0) {
    auto stream = busy_.begin();
    std::advance(stream, (*chance)() % busy_.size());
    advance(*stream);
  }
}

Event Streams::record(Key stream) {
  Queue& queue = queues_[stream];
  forget_reached(queue.clock);
  Event event{{stream, queue.enqueued}, queue.clock};
  event.clock[stream] = queue.enqueued;
  return event;
}

void Streams::wait(Key stream, const Event& event) {
  if (ordered(stream, event.at) || leaves_out_wait()) return;
  Clock& clock = queues_[stream].clock;
  for (const auto& [other, position] : event.clock)
    if (!reached({other, position})) clock[other] = std::max(clock[other], position);
  if (!reached(event.at)) push(stream, {nullptr, event.at});
}

void Streams::forget_reached(Clock& clock) const {
  std::erase_if(clock, [this](const auto& known) { return reached({known.first, known.second}); });
}

Site& Streams::site() {
  thread_local Site at = Site::other;
  return at;
}

bool Streams::leaves_out_wait() {
  const std::int64_t number = waits[site()]++;
  return left_out && left_out->first == site() && left_out->second.value_or(number) == number;
}

bool Streams::reached(const Point& point) const {
  const auto queue = queues_.find(point.stream);
  return point.position == 0 || (queue != queues_.end() && queue->second.done >= point.position);
}

bool Streams::ordered(Key stream, const Point& point) const {
  if (stream == point.stream || reached(point)) return true;
  const auto queue = queues_.find(stream);
  if (queue == queues_.end()) return false;
  const auto known = queue->second.clock.find(point.stream);
  return known != queue->second.clock.end() && known->second >= point.position;
}

bool Streams::idle(Key stream) const {
  const auto queue = queues_.find(stream);
  return queue == queues_.end() || queue->second.items.empty();
}

void Streams::step(Key stream) {
  Queue& queue = queues_[stream];
  Item item = std::move(queue.items.front());
  queue.items.pop_front();
  if (queue.items.empty()) busy_.erase(stream);
  if (item.after) {
    run(*item.after);
  } else {
    in_task_ = true;
    try {
      item.task();
    } catch (...) {
      keep(std::current_exception());
    }
    in_task_ = false;
  }
  ++queue.done;
}

void Streams::run(const Point& point) {
  refuse_in_task();
  const Queue& queue = queues_[point.stream];
  while (queue.done < point.position) step(point.stream);
}

void Streams::run(Key stream) {
  run({stream, queues_[stream].enqueued});
}

void Streams::run_all(Key first, Key last) {
  for (auto queue = queues_.lower_bound(first); queue != queues_.end() && queue->first < last; ++queue)
    run({queue->first, queue->second.enqueued});
}

void Streams::advance(Key stream) {
  const Queue& queue = queues_[stream];
  if (queue.items.empty()) return;
  const std::optional<Point> after = queue.items.front().after;
  if (after && !reached(*after))
    advance(after->stream);
  else
    step(stream);
}

void Streams::keep(std::exception_ptr fault) noexcept {
  if (faults)
    ++*faults;
  else if (!fault_)
    fault_ = std::move(fault);
}

void Streams::throw_fault() {
  if (fault_) std::rethrow_exception(std::exchange(fault_, nullptr));
}

}  // namespace zero::test::accelerator

#include "zero/memory_analyzer.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "analysis/history.h"
#include "analysis/process.h"
#include "analysis/torch/engine_watch.h"
#include "analysis/torch/reporter.h"
#include "analysis/torch/watched.h"
#include "device/torch/devices.h"
#include "memory/torch/arena_allocator.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace zero {
namespace {

KnownMemory known_memory() {
  const HostUsage usage = host_usage();
  return {.arena_begin = reinterpret_cast<std::uintptr_t>(usage.arena_begin),
          .arena_end = reinterpret_cast<std::uintptr_t>(usage.arena_end),
          .arena_waiting = usage.arena_waiting,
          .tensors = usage.small,
          .state = usage.lasting};
}

// With its index.
c10::Device known_device(c10::Device device) {
  if (device.is_cpu()) return c10::kCPU;
  const int count = device_count(device.type());
  if (count == 0 || device.index() >= count)
    throw ConfigError("MemoryAnalyzer: there is no device '" + device.str() + "'", "name another, or the CPU");
  static_cast<void>(device_at(device));
  return with_index(device);
}

std::int64_t reserved_on(c10::Device device) {
  if (device.is_cpu()) return host_usage().reserved();
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).reserved_bytes[kAll].current;
}

}  // namespace

class MemoryAnalyzer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(c10::Device device) : device_(known_device(device)) { history_->thread(); }

  // `tell` says whose is what is there already.
  template <class Tell>
  void tell(const Tell& tell) {
    const Telling telling{*log_};
    tell(watched_);
  }

  void watch(Engine& engine) {
    const Telling telling{*log_};
    std::vector<std::string> units;
    for (const UnitLayout& unit : engine.layout().units()) units.push_back(unit.name());
    const auto watching = std::make_shared<EngineWatch>(
        EngineWatch::Sinks{log_, history_, [device = device_] { return reserved_on(device); },
                           [weak = weak_from_this()] {
                             if (const auto self = weak.lock()) self->settle();
                           },
                           device_},
        std::move(units));
    engine.observe(watching);
    engines_.push_back(watching);
  }

  int begin_scope() {
    ++depth_;
    return log_->open();
  }
  MemoryRecord end_scope(const std::string& tag, int span) {
    --depth_;
    return keep(tag, span);
  }
  MemoryRecord record(const std::string& tag) {
    const MemoryRecord record = keep(tag, since_);
    since_ = log_->open();
    return record;
  }

  MemoryReport report() {
    settle();
    MemoryReport report;
    report.device = device_.str();
    history_->fill(report);
    report.peak = log_->peak();
    report.timeline = log_->timeline();
    report.process = this_process(known_memory);
    return report;
  }

 private:
  struct Telling {
    MemoryLog& log;
    explicit Telling(MemoryLog& of) : log(of) { log.begin_telling(); }
    ~Telling() { log.end_telling(); }
    Telling(const Telling&) = delete;
    Telling& operator=(const Telling&) = delete;
  };

  void settle() {
    watched_.refresh();
    log_->settle();
  }

  MemoryRecord keep(const std::string& tag, int open) {
    watched_.refresh();
    const MemoryLog::Span span = log_->settle_and_close(open);
    const MemoryRecord record{
        tag,      depth_,     span.last, span.peak, reserved_on(device_), span.last - span.first, span.end - span.begin,
        span.end, span.owners};
    history_->add(record);
    return record;
  }

  c10::Device device_;
  std::shared_ptr<MemoryLog> log_ = std::make_shared<MemoryLog>();
  std::shared_ptr<History> history_ = std::make_shared<History>();
  std::shared_ptr<Reporter> reporter_ = std::make_shared<Reporter>(log_, device_);
  Watched watched_{log_, device_};
  Listening listening_{reporter_};
  std::vector<std::shared_ptr<EngineWatch>> engines_;
  int since_ = log_->open();
  int depth_ = 0;
};

struct MemoryAnalyzer::Scope::State {
  std::weak_ptr<Impl> impl;
  std::string tag;
  int span;
};

MemoryAnalyzer::Scope::Scope(std::unique_ptr<State> state) : state_(std::move(state)) {}

MemoryAnalyzer::Scope::~Scope() {
  if (const auto impl = state_->impl.lock()) impl->end_scope(state_->tag, state_->span);
}

MemoryAnalyzer::MemoryAnalyzer(c10::Device device) : impl_(std::make_shared<Impl>(device)) {}
MemoryAnalyzer::~MemoryAnalyzer() = default;

void MemoryAnalyzer::watch(const torch::nn::Module& module) {
  impl_->tell([&](Watched& watched) { watched.add(module); });
}
void MemoryAnalyzer::watch(torch::optim::Optimizer& optimizer) {
  impl_->tell([&](Watched& watched) { watched.add(optimizer); });
}
void MemoryAnalyzer::watch(Engine& engine) {
  impl_->watch(engine);
}
void MemoryAnalyzer::watch(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit) {
  impl_->tell([&](Watched& watched) { watched.add(tensor, owner, unit); });
}

MemoryRecord MemoryAnalyzer::record(const std::string& tag) {
  return impl_->record(tag);
}

MemoryAnalyzer::Scope MemoryAnalyzer::scope(const std::string& tag) {
  return Scope(std::make_unique<Scope::State>(Scope::State{impl_, tag, impl_->begin_scope()}));
}

MemoryReport MemoryAnalyzer::report() {
  return impl_->report();
}

}  // namespace zero

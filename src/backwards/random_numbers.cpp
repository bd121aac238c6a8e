#include "backwards/random_numbers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include "backwards/unwatched.h"
#include "base/random.h"

namespace zero {
namespace {

// A program that never steps is not to remember without end.
constexpr std::size_t kMostRemembered = std::size_t{1} << 20;
// An engine that has not stepped for so many steps of others does not go back to what was drawn before.
constexpr std::int64_t kMostSteps = 64;

// The next 624 numbers of a Mersenne twister come from all of its words but these bits of the first one.
constexpr std::uint32_t kUnused = 0x7FFFFFFF;

// To be used under its mutex.
at::CPUGeneratorImpl& default_of_host() {
  return *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>();
}

std::uint64_t two_words(std::uint32_t upper, std::uint32_t lower) {
  return std::uint64_t{upper} << 32 | lower;
}

std::uint64_t hash_of(const at::mt19937_data_pod& data, at::CPUGeneratorImpl& generator) {
  std::uint64_t hash = derived(two_words(data.state_[0], data.state_[1]), two_words(data.state_[2], data.next_));
  const std::optional<float> normal = generator.next_float_normal_sample();
  const std::optional<double> wide = generator.next_double_normal_sample();
  if (normal) hash = derived(hash, std::bit_cast<std::uint32_t>(*normal));
  if (wide) hash = derived(hash, std::bit_cast<std::uint64_t>(*wide));
  return hash;
}

std::uint64_t hash_of_default(const c10::Device& device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  std::uint64_t hash = 0;
  for (std::int64_t at = 0; at < state.numel(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const char*>(state.const_data_ptr()) + at,
                static_cast<std::size_t>(std::min<std::int64_t>(8, state.numel() - at)));
    hash = derived(hash, word);
  }
  return hash;
}

}  // namespace

void RandomNumbers::add_device(const c10::Device& device) {
  const std::lock_guard lock(mutex_);
  if (!device.is_cpu()) devices_.insert_or_assign(device.type(), device);
}

// Where an operator on such a device draws; none: not for an engine.
std::optional<c10::Device> RandomNumbers::known(const c10::Device& device) const {
  if (device.is_cpu()) return device;
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(device.type());
  if (found == devices_.end()) return {};
  return device.has_index() ? device : found->second;
}

void RandomNumbers::begin_forward() {
  if (watched_threads != 1) return;
  begin_ = latest_ = place(c10::kCPU).host;
  following_ = false;
}

void RandomNumbers::end_seed() {
  const std::lock_guard lock(mutex_);
  if (!seeded_) return;
  if (const auto found = drawn_.find(*std::exchange(seeded_, std::nullopt)); found != drawn_.end())
    found->second.over = true;
}

void RandomNumbers::add(const MicroBatch& engine) {
  const std::lock_guard lock(mutex_);
  stepped_.emplace(&engine, steps_);
}

void RandomNumbers::step_of(const MicroBatch& engine) {
  const std::lock_guard lock(mutex_);
  stepped_[&engine] = ++steps_;
  forget_what_all_stepped_since();
}

void RandomNumbers::remove(const MicroBatch& engine) {
  const std::lock_guard lock(mutex_);
  stepped_.erase(&engine);
  if (stepped_.empty()) return drawn_.clear();
  forget_what_all_stepped_since();
}

// Nobody goes back to that. An engine goes back to what the program drew for it between steps of others.
void RandomNumbers::forget_what_all_stepped_since() {
  std::int64_t first = steps_;
  for (const auto& [engine, step] : stepped_) first = std::min(first, step);
  first = std::max(first, steps_ - kMostSteps);
  std::erase_if(drawn_, [first](const auto& each) { return each.second.step < first; });
}

RandomNumbers::Place RandomNumbers::place(const c10::Device& device) {
  Place place{.device = device.is_cpu() ? 0 : hash_of_default(device)};
  at::CPUGeneratorImpl& host = default_of_host();
  const std::lock_guard lock(host.mutex_);
  const at::mt19937_data_pod data = host.engine().data();
  place.host = hash_of(data, host);
  place.seeded = data.next_ == 0 && data.state_[0] == static_cast<std::uint32_t>(data.seed_);
  return place;
}

std::uint32_t RandomNumbers::new_mark() {
  static std::atomic<std::uint32_t> latest = 0;
  return ++latest & kUnused;
}

std::optional<RandomNumbers::Drawn> RandomNumbers::find(std::uint64_t key, bool also_over) {
  const std::lock_guard lock(mutex_);
  const auto found = drawn_.find(key);
  if (found == drawn_.end() || (found->second.over && !also_over)) return {};
  if (found->second.begins) seeded_ = key;
  return found->second;
}

void RandomNumbers::remember(std::uint64_t key, Drawn drawn) {
  const std::lock_guard lock(mutex_);
  drawn.step = steps_;
  if (drawn.begins) seeded_ = key;
  if (drawn_.size() >= kMostRemembered) drawn_.clear();
  drawn_.insert_or_assign(key, drawn);
}

// Marks the place behind a draw.
void RandomNumbers::leave(std::uint32_t mark, bool following) {
  at::CPUGeneratorImpl& host = default_of_host();
  const std::lock_guard lock(host.mutex_);
  at::mt19937 engine = host.engine();
  at::mt19937_data_pod data = engine.data();
  data.state_[0] = (data.state_[0] & ~kUnused) | mark;
  engine.set_data(data);
  host.set_engine(engine);
  latest_ = hash_of(data, host);
  following_ = following;
}

// Since the forward began.
bool RandomNumbers::seeded_by_program(const Place& place) const {
  return place.seeded && place.host != begin_ && place.host != latest_;
}

bool RandomNumbers::follows(const Place& place) const {
  return following_ && place.host == latest_;
}

at::Generator RandomNumbers::generator(const c10::Device& device) {
  const std::lock_guard lock(mutex_);
  const auto found = generators_.find(device.type());
  if (found != generators_.end() && (device.is_cpu() || found->second.device() == device)) return found->second;
  at::Generator made =
      device.is_cpu() ? at::detail::createCPUGenerator()
                      : at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  generators_.insert_or_assign(device.type(), made);
  return made;
}

}  // namespace zero

// From where operators draw random numbers, and how the program goes back to numbers that were drawn.
//
// In a forward an operator draws from the engine's generator, which is seeded for each draw, and LibTorch's default
// generator stays where it is. Each draw on the engine's thread, in a forward or not, is remembered by the operator and
// by the state in which the default generator was. Behind it this state gets a mark, in bits that no number comes from:
// so no two draws find the same state unless the program has set it back, and then the second draws what the first
// drew, from where the first drew it. What the program seeds in the middle of a forward is drawn from itself.
//
// The default generator is one for all threads of a process: where engines live on several of them (ranks that are
// threads) it is neither looked at nor marked.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace zero {

class MicroBatch;

// What is remembered of a thread's draws. Thread-safe.
class RandomNumbers {
 public:
  // An engine has its parameters there.
  void add_device(const c10::Device& device);
  // A forward with gradients begins.
  void begin_forward();
  // A micro-batch is over: the seed that it began with begins another one next time.
  void end_seed();
  // An engine is there, its step is over, or it is.
  void add(const MicroBatch& engine);
  void step_of(const MicroBatch& engine);
  void remove(const MicroBatch& engine);

 private:
  friend class Draw;  // operators/random_draws.cpp

  // Where the default generators are: of the CPU, and of the device that is drawn on, else 0.
  struct Place {
    std::uint64_t host = 0, device = 0;
    bool seeded = false;  // nothing was drawn from the CPU's since it was seeded
  };
  struct Drawn {
    std::optional<std::uint64_t> seed;  // of the engine's generator; none: from the default one
    std::uint32_t mark;                 // that the default one has behind it
    std::int64_t step = 0;              // of all engines' steps
    // A micro-batch may have begun here, at a seed, from which later ones may begin: when it is over, not to be found.
    bool begins = false;
    bool over = false;
  };

  static Place place(const c10::Device& device);
  static std::uint32_t new_mark();
  std::optional<Drawn> find(std::uint64_t key, bool also_over);
  void remember(std::uint64_t key, Drawn drawn);
  void forget_what_all_stepped_since();
  void leave(std::uint32_t mark, bool following);
  bool seeded_by_program(const Place& place) const;
  bool follows(const Place& place) const;
  std::optional<c10::Device> known(const c10::Device& device) const;
  at::Generator generator(const c10::Device& device);

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, Drawn> drawn_;
  std::map<c10::DeviceType, c10::Device> devices_;  // of engines, but for the CPU
  std::map<c10::DeviceType, at::Generator> generators_;
  std::map<const MicroBatch*, std::int64_t> stepped_;  // which of all engines' steps was its latest
  std::int64_t steps_ = 0;
  std::optional<std::uint64_t> seeded_;   // the latest key at which one may have begun
  std::uint64_t begin_ = 0, latest_ = 0;  // Place::host where the forward began, and behind the latest draw
  bool following_ = false;                // which was from the default generator
};

}  // namespace zero

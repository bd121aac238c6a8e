// Builds a module without memory for its values:
//
//   auto model = zero::deferred([] { return Model(config); });
//   zero::Engine engine(*model, world, zero::Plan::zero3(), zero::AdamW{});
//
// What the constructor computes is noted, not carried out. The engine does that unit by unit, and keeps of each what
// the plan puts on this rank: so a model may be larger than a rank's memory. The bits are those of building it whole,
// and the generator of random numbers is afterwards where that would have left it.
#pragma once

#include <type_traits>
#include <utility>

namespace torch::nn {
class Module;
}

namespace zero {

// While it lives, tensors that this thread makes, on the CPU or a device, have no values, but for those of at most 4
// KiB and for what is computed of others that have. Operators are noted with what they were given, also later and on
// other threads, as long as they write such tensors, copy them (to(), clone()) or view them. An operator that needs
// values at once, to return a number or a tensor whose shape depends on them, throws a StateError that names it and the
// tensor, and so does any other use of a module's parameters and buffers after this has ended. What is neither has its
// values when it is used then. A pointer to values that are not there throws c10::Error, which says the same.
//
// Random operators are carried out on memory of one tensor, where that is to be, which is given back at once, to leave
// the generator as they do; what they draw from is remembered, for a generator of the CPU in 5 KB.
class Deferring {
 public:
  Deferring();
  ~Deferring();
  Deferring(const Deferring&) = delete;
  Deferring& operator=(const Deferring&) = delete;

  // Errors say from now on which of the module's parameters or buffers they are about.
  static void name(const torch::nn::Module& module);
};

// What `build` returns: a module, a holder of one, or anything that has some.
template <class Build>
auto deferred(Build&& build) -> std::invoke_result_t<Build> {
  const Deferring scope;
  if constexpr (requires { Deferring::name(*build()); }) {
    auto module = std::forward<Build>(build)();
    Deferring::name(*module);
    return module;
  } else {
    return std::forward<Build>(build)();
  }
}

// Gives the module's parameters and buffers the values that they would have had, for use without an engine; of one that
// has them it changes nothing. Throws what an operator of the constructor throws, and CheckpointError where values are
// to come from files that cannot be read. Not collective.
void materialize(torch::nn::Module& module);

}  // namespace zero

// Tells where the memory of a LibTorch program goes; with an Engine or without one.
//
//   zero::MemoryAnalyzer analyzer;
//   analyzer.watch(*model);
//   analyzer.watch(optimizer);
//   { auto scope = analyzer.scope("forward"); loss = criterion(model->forward(x), y); }
//   loss.backward();
//   analyzer.record("after backward");
//   std::fputs(zero::to_string(analyzer.report()).c_str(), stdout);
//
// It sees what tensors allocate in the memory of one device, the CPU's or another's, on the thread that built it and on
// the autograd threads that work for it, and what of that is freed: of the CPU's on whatever thread, of another's on
// these, or when the address is given out again. Memory that is older is seen if it is watched. From the construction
// of one of the CPU on, tensors of the CPU come from libzero's allocator, which stays for the process; without
// zero::init() it takes memory from where LibTorch does.
//
// One analyzer at a time on a thread, on which all its calls are made and it is destroyed; analyzers on several threads
// do not notice each other. LibTorch's own profiler cannot run on that thread beside it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "zero/memory_report.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace zero {

class Engine;

class MemoryAnalyzer {
 public:
  // Of a kind without an index, the thread's current device. Throws StateError where another analyzer or LibTorch's
  // profiler is on this thread, ConfigError where there is no such device.
  explicit MemoryAnalyzer(c10::Device device = c10::kCPU);
  ~MemoryAnalyzer();
  MemoryAnalyzer(const MemoryAnalyzer&) = delete;
  MemoryAnalyzer& operator=(const MemoryAnalyzer&) = delete;

  // Parameters and buffers, also those that are there already, and from now on the parameters' gradients, under the
  // names of the modules that hold them. Parameters that an engine has are left to it; what is on another device is not
  // the analyzer's. Throws ConfigError where all of it is.
  void watch(const torch::nn::Module& module);
  // Its state, when it has one, under the names of the parameters. LibTorch's own kinds of optimizer; what others keep
  // is named by watch(tensor, MemoryOwner::optimizer). The optimizer outlives the analyzer.
  void watch(torch::optim::Optimizer& optimizer);
  // What it holds, by owner and unit, and its phases. Its thread is the analyzer's. Either may end first; an engine
  // is watched by one analyzer, the last. Throws ConfigError where its parameters are on another device.
  void watch(Engine& engine);
  // One tensor's memory, and that of its gradient. Throws ConfigError where it is on another device.
  void watch(const at::Tensor& tensor, MemoryOwner owner, const std::string& unit = {});

  // Ends the stretch that the last record, or the construction, began.
  MemoryRecord record(const std::string& tag);

  // The same for what happens while the scope lives. Scopes nest. One that outlives the analyzer records nothing.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class MemoryAnalyzer;
    struct State;
    explicit Scope(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
  };
  [[nodiscard]] Scope scope(const std::string& tag);

  // Everything so far; the analyzer goes on.
  MemoryReport report();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace zero

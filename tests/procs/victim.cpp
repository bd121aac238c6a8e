// One rank of a small training with a fault: victim FAULT RANK [PLAN]. In its second step the rank of
// that number does what FAULT says. A rank that fails says how and exits with 1; SIGTERM does not
// keep it from telling.
#include <poll.h>
#include <sys/syscall.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <iostream>
#include <thread>

#include "zero/zero.h"

namespace {

constexpr int kSteps = 3;
constexpr int kFaultyStep = 1;
constexpr std::int64_t kWidth = 48;

struct NetImpl : torch::nn::Module {
  NetImpl(std::int64_t width, int depth) {
    for (int i = 0; i < depth; ++i) layers->push_back(torch::nn::Linear(i == 0 ? kWidth : width, width));
    register_module("layers", layers);
  }

  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) {
      x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
      if (after_layer) after_layer();
    }
    return x;
  }

  torch::nn::ModuleList layers;
  std::function<void()> after_layer;
};
TORCH_MODULE(Net);

std::vector<std::int64_t> process_of_each(const zero::World& world) {
  const std::int64_t own = ::getpid();
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  world.communicator().all_gather({&own, 1, zero::Dtype::i64}, {all.data(), world.size(), zero::Dtype::i64}).wait();
  return all;
}

void await_death(std::int64_t process) {
  const auto fd = static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0));
  if (fd < 0) return;
  pollfd end{fd, POLLIN, 0};
  ::poll(&end, 1, -1);
  ::close(fd);
}

bool asleep(pid_t thread) {
  std::ifstream in("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return text.substr(text.rfind(')') + 2, 1) == "S";
}

// Kills this process when the calling thread waits for something.
void die_when_asleep() {
  std::thread([thread = ::gettid()] {
    while (!asleep(thread)) std::this_thread::yield();
    ::raise(SIGKILL);
  }).detach();
}

class Rank {
 public:
  Rank(const std::string& fault, int victim, const std::string& plan)
      : fault_(fault), victim_(victim), plan_(plan), world_(zero::init()), processes_(process_of_each(world_)) {}

  void run() {
    if (fault_ == "dies-in-all-gather") return die_in_all_gather();
    if (fault_ == "calls-barrier") return call_barrier();
    train();
  }

 private:
  bool victim() const { return world_.rank() == victim_; }
  bool due(const char* fault) const { return victim() && step_ == kFaultyStep && fault_ == fault; }

  zero::Plan plan() const { return zero::Plan::named(victim() && fault_ == "other-plan" ? "ddp" : plan_); }

  void train() {
    Net net(victim() && fault_ == "wider" ? kWidth + 16 : kWidth, victim() && fault_ == "deeper" ? 4 : 3);
    net->after_layer = [this] { in_forward(); };
    zero::Options options;
    options.schedule = [this](std::int64_t) {
      if (due("dies-in-step")) ::raise(SIGKILL);
      return 1.0;
    };
    zero::Engine engine(*net, world_, plan(), zero::AdamW{}, options);
    const auto backward = [&] { engine.backward(net->forward(torch::ones({2, kWidth})).mean()); };
    for (; step_ < kSteps; ++step_) {
      backward();
      if (due("repeats-backward")) backward();
      if (due("writes")) const zero::Gather scope(net->parameters(), 0);
      if (due("leaves")) return;
      before_step();
      engine.step();
    }
  }

  void in_forward() const {
    if (due("dies-in-forward")) ::raise(SIGKILL);
    if (due("throws-in-forward")) throw std::runtime_error("no such token");
  }

  void before_step() const {
    if (due("stops")) ::raise(SIGSTOP);
    if (due("dies-in-collective")) die_when_asleep();
    if (fault_ == "dies-in-collective" && step_ == kFaultyStep) come_late();
  }

  // The rank after the victim joins no collective while the victim lives.
  bool come_late() const {
    const bool late = world_.rank() == (victim_ + 1) % world_.size();
    if (late) await_death(processes_[static_cast<std::size_t>(victim_)]);
    return late;
  }

  // The victim dies when it has received from the rank before it, and not yet from the one after it. A peer
  // that has all it needs from the victim learns of it in the next operation.
  void die_in_all_gather() const {
    constexpr std::int64_t kCount = 1 << 16;
    const int size = world_.size();
    const std::vector<float> shard(kCount, 1);
    std::vector<float> whole(static_cast<std::size_t>(kCount * size));
    come_late();
    zero::Pending all = world_.communicator().all_gather({shard.data(), kCount}, {whole.data(), kCount * size});
    const auto before = static_cast<std::size_t>((victim_ + size - 1) % size);
    const std::atomic_ref<float> received(whole[before * static_cast<std::size_t>(kCount)]);
    if (victim()) {
      while (received.load() == 0) std::this_thread::yield();
      ::raise(SIGKILL);
    }
    all.wait();
    world_.communicator().barrier().wait();
  }

  void call_barrier() const {
    float value = 1;
    if (victim()) return world_.communicator().barrier().wait();
    world_.communicator().all_reduce({&value, 1}).wait();
  }

  std::string fault_;
  int victim_;
  std::string plan_;
  zero::World world_;
  std::vector<std::int64_t> processes_;
  int step_ = 0;
};

}  // namespace

int main(int argc, char** argv) try {
  std::signal(SIGTERM, SIG_IGN);
  Rank(argv[1], std::atoi(argv[2]), argc > 3 ? argv[3] : "zero3").run();
  return 0;
} catch (const zero::CommError& error) {
  std::cerr << "CommError: " << error.what() << std::endl;
  return 1;
} catch (const zero::ConfigError& error) {
  std::cerr << "ConfigError: " << error.what() << std::endl;
  return 1;
} catch (const std::exception& error) {
  std::cerr << "exception: " << error.what() << std::endl;
  return 3;
}

// One rank of a small training with a fault: victim FAULT RANK [PLAN]. In its second step the rank of
// that number does what FAULT says. A rank that fails says how and exits with 1; SIGTERM does not
// keep it from telling.
//
// victim killed RANK PLAN PHASE MICROSECONDS: all train without end, and the kernel kills that rank so long
// after PHASE has begun: start, joined or training. A rank that has joined says so; SIGTERM ends only those
// that have not.
//
// victim meets-again: all join 20 times, each time before they leave what they joined before.
// victim meets-again RANK SIZE HOST PORT made|found: 5 times, as the program itself says who they are; in a store that
// is made for it, or found, being rank 0's already.
#include <poll.h>
#include <sys/syscall.h>
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <csignal>
#include <ctime>
#include <fstream>
#include <iostream>
#include <limits>
#include <thread>

#include "zero/zero.h"

namespace {

constexpr int kSteps = 3;
constexpr int kFaultyStep = 1;
constexpr std::int64_t kWidth = 48;
constexpr std::int64_t kMicro = 1'000'000;

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

// Kills this process, from a thread of its own, when `ready` says so.
template <class Ready>
void die_when(Ready ready) {
  std::thread([ready] {
    while (!ready()) std::this_thread::yield();
    ::raise(SIGKILL);
  }).detach();
}

// The kernel kills this process after so many microseconds, whatever it does then.
void die_after(std::int64_t microseconds) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  const itimerspec time{{}, {microseconds / kMicro, microseconds % kMicro * 1000 + 1}};
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || ::timer_settime(timer, 0, &time, nullptr) != 0)
    throw std::runtime_error("no timer");
}

// When a rank that is to be killed dies.
struct Death {
  std::string phase;
  std::int64_t microseconds = 0;

  void begin(const char* now) const {
    if (phase == now) die_after(microseconds);
  }
};

class Rank {
 public:
  Rank(const std::string& fault, int victim, const std::string& plan, const Death& death)
      : fault_(fault), victim_(victim), plan_(plan), death_(death), world_(zero::init()) {}

  void run() {
    std::signal(SIGTERM, SIG_IGN);
    std::cout << "joined" << std::endl;
    begin("joined");
    processes_ = process_of_each(world_);
    if (fault_ == "dies-in-all-gather") return die_in_all_gather(1 << 16, true);
    if (fault_ == "dies-between-pieces") return die_in_all_gather(1 << 22, false);
    if (fault_ == "calls-barrier") return call_barrier();
    train();
  }

 private:
  bool victim() const { return world_.rank() == victim_; }
  bool due(const char* fault) const { return victim() && step_ == kFaultyStep && fault_ == fault; }

  int steps() const { return fault_ == "killed" ? std::numeric_limits<int>::max() : kSteps; }
  void begin(const char* phase) const {
    if (victim()) death_.begin(phase);
  }

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
    for (; step_ < steps(); ++step_) {
      if (step_ == kFaultyStep) begin("training");
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
    if (due("dies-in-collective")) die_when([thread = ::gettid()] { return asleep(thread); });
    if (fault_ == "dies-in-collective" && step_ == kFaultyStep) come_late();
  }

  // The rank after the victim joins no collective while the victim lives.
  void come_late() const {
    if (world_.rank() == (victim_ + 1) % world_.size()) await_death(processes_[static_cast<std::size_t>(victim_)]);
  }

  // The victim dies when something has come from the rank before it and, where the rank after it is `late`, nothing
  // from that one. A peer that by then has all it needs learns of it in the next operation.
  void die_in_all_gather(std::int64_t count, bool late) const {
    const int size = world_.size();
    const std::vector<float> shard(static_cast<std::size_t>(count), 1);
    std::vector<float> whole(static_cast<std::size_t>(count * size));
    const auto before = static_cast<std::size_t>((victim_ + size - 1) % size);
    float* const received = &whole[before * static_cast<std::size_t>(count)];
    if (victim()) die_when([received] { return std::atomic_ref(*received).load() != 0; });
    if (late) come_late();
    world_.communicator().all_gather({shard.data(), count}, {whole.data(), count * size}).wait();
    if (victim()) await_death(::getpid());
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
  Death death_;
  zero::World world_;
  std::vector<std::int64_t> processes_;
  int step_ = 0;
};

using Store = c10::intrusive_ptr<c10d::TCPStore>;

Store store_at(const zero::Ranks& ranks) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(ranks.port);
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>(ranks.host, options);
}

void meet_again(const std::vector<std::string>& said) {
  const int meetings = said.empty() ? 20 : 5;
  zero::InitOptions options;
  if (!said.empty())
    options.ranks = zero::Ranks{.rank = std::stoi(said.at(0)),
                                .size = std::stoi(said.at(1)),
                                .host = said.at(2),
                                .port = std::stoi(said.at(3)),
                                .has_store = said.at(4) == "found"};
  const bool serves = options.ranks && options.ranks->has_store && options.ranks->rank == 0;
  const Store store = serves ? store_at(*options.ranks) : Store();
  zero::World before;
  for (int meeting = 0; meeting < meetings; ++meeting) {
    zero::World world = zero::init(options);
    float sum = static_cast<float>(meeting);
    world.communicator().all_reduce({&sum, 1}).wait();
    if (sum != static_cast<float>(meeting * world.size())) throw std::runtime_error("met somebody else");
    before = std::move(world);
  }
  std::cout << "met " << meetings << " times as " << before.rank() << " of " << before.size() << ", here "
            << before.local_rank() << " of " << before.local_size() << std::endl;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 1 && argv[1] == std::string("meets-again")) return meet_again({argv + 2, argv + argc}), 0;
  const std::string fault = argv[1], plan = argc > 3 ? argv[3] : "zero3";
  const int victim = std::atoi(argv[2]);
  const Death death = argc > 5 ? Death{argv[4], std::atoll(argv[5])} : Death{};
  if (fault != "killed") std::signal(SIGTERM, SIG_IGN);
  if (std::atoi(std::getenv("RANK")) == victim) death.begin("start");
  Rank(fault, victim, plan, death).run();
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

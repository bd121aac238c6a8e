// What one rank sends another between two hosts: by the library, or by a plain stream, which is what the link carries.
// Seconds, and seconds of both processes' processors, a turn. Rank 0 prints a line of JSON; run.py makes the hosts.
//
//   stream zero|plain MIB TURNS     in each of two processes, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "comm/listener.h"
#include "zero/world.h"

namespace {

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Carries all of it from rank 0 to rank 1, which says that it has it.
using Turn = std::function<void(std::vector<char>& bytes)>;

void move_all(ssize_t (*call)(int, char*, std::size_t), int socket, char* at, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t some = call(socket, at, bytes);
    if (some <= 0) throw std::runtime_error("the plain stream broke");
    at += some;
    bytes -= static_cast<std::size_t>(some);
  }
}

// The ranks of a world tell each other where rank 1 listens.
Turn plain(const zero::World& world) {
  const bool sends = world.rank() == 0;
  std::string address = zero::address_towards(std::getenv("MASTER_ADDR"), 1);
  address.resize(64);
  std::int64_t port = 0;
  zero::Listener listener{zero::Descriptor(), 0};
  if (!sends) {
    listener = zero::bind_listener(address.c_str(), 0);
    port = listener.port;
    listen(listener.socket.get(), 1);
  }
  world.communicator().broadcast({address.data(), std::ssize(address), zero::Dtype::u8}, 1).wait();
  world.communicator().broadcast({&port, 1, zero::Dtype::i64}, 1).wait();
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  zero::Descriptor stream = sends ? zero::connect_to(address.c_str(), static_cast<int>(port), until)
                                  : zero::Descriptor(accept(listener.socket.get(), nullptr, nullptr));
  fcntl(stream.get(), F_SETFL, 0);
  const auto out = [](int s, char* at, std::size_t n) { return send(s, at, std::min<std::size_t>(n, 128 << 10), 0); };
  const auto in = [](int s, char* at, std::size_t n) { return recv(s, at, std::min<std::size_t>(n, 128 << 10), 0); };
  return [sends, out, in, stream = std::make_shared<zero::Descriptor>(std::move(stream))](std::vector<char>& bytes) {
    char word = 1;
    move_all(sends ? +out : +in, stream->get(), bytes.data(), bytes.size());
    move_all(sends ? +in : +out, stream->get(), &word, 1);
  };
}

Turn ours(const zero::World& world) {
  return [world](std::vector<char>& bytes) {
    world.communicator().broadcast({bytes.data(), std::ssize(bytes), zero::Dtype::u8}, 0).wait();
    char word = 1;
    world.communicator().broadcast({&word, 1, zero::Dtype::u8}, 1).wait();
  };
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("stream zero|plain MIB TURNS");
  const zero::World world = zero::init();
  const Turn turn = std::string(argv[1]) == "plain" ? plain(world) : ours(world);
  std::vector<char> bytes(std::stoul(argv[2]) << 20, 'x');
  turn(bytes);
  const int turns = std::stoi(argv[3]);
  const double before = processor_seconds();
  const auto start = bench::Clock::now();
  for (int i = 0; i < turns; ++i) turn(bytes);
  const double seconds = bench::seconds_since(start);
  double used[2] = {};
  const double mine = processor_seconds() - before;
  world.communicator().all_gather({&mine, 1, zero::Dtype::f64}, {used, 2, zero::Dtype::f64}).wait();
  if (world.rank() == 0)
    std::printf("{\"seconds\": %.6f, \"processor\": %.6f, \"bytes\": %zu}\n", seconds / turns,
                (used[0] + used[1]) / turns, bytes.size());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

#include "comm/rendezvous.h"

#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/worker.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr auto kPoll = std::chrono::milliseconds(10);

std::string who(const LauncherEnv& env) {
  return "rank " + std::to_string(env.rank) + ": ";
}

std::string meeting_file(const LauncherEnv& env) {
  std::string job = env.job;
  for (char& c : job)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  return (std::filesystem::temp_directory_path() / ("zero-" + std::to_string(getuid()) + "-" + job)).string();
}

void require_meeting_place(const LauncherEnv& env) {
  const std::string change = "set MASTER_ADDR to the host name of rank 0 and MASTER_PORT to a free port there";
  if (!env.one_host())
    throw ConfigError(who(env) + env.launcher + " started " + std::to_string(env.size) +
                          " ranks on several hosts without saying where rank 0 listens",
                      change);
  if (env.job.empty()) throw ConfigError(who(env) + env.launcher + " does not name its job", change);
}

bool alive(pid_t process) {
  return kill(process, 0) == 0 || errno == EPERM;
}

bool ours(const std::string& file) {
  struct stat info {};
  return lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == getuid();
}

// The port of the process that wrote `file`; 0: no file yet, or left behind by a dead process.
int read_port(const std::string& file) {
  if (!ours(file)) return 0;
  std::ifstream in(file);
  int port = 0;
  pid_t process = 0;
  return in >> port >> process && alive(process) ? port : 0;
}

// The first of the ranks, by their keys, that the store has not seen, if it still answers.
std::string absent(c10d::Store& store, const std::vector<std::string>& keys) try {
  for (std::size_t r = 0; r < keys.size(); ++r)
    if (!store.check({keys[r]})) return "; rank " + std::to_string(r) + " did not";
  return "";
} catch (const std::exception&) {
  return "; rank 0 does not answer any more";
}

// Built on a thread that a Worker starts, for the sake of the thread that the server starts. It is left behind when
// what listens at the port never says a word, since the handshake of c10d waits for it without end.
c10::intrusive_ptr<c10d::TCPStore> connected(const std::string& host, const c10d::TCPStoreOptions& options) {
  std::packaged_task<c10::intrusive_ptr<c10d::TCPStore>()> connect(
      [host, options] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  auto store = connect.get_future();
  Worker().submit([&] { std::thread(std::move(connect)).detach(); }).wait();
  if (store.wait_for(2 * options.timeout) != std::future_status::ready)
    throw CommError("there is no store, or it keeps silent");
  return store.get();
}

struct AddressDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

class Socket {
 public:
  explicit Socket(int family) : fd_(socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Our own address when talking to `peer`; empty when there is no route.
  std::string towards(const addrinfo& peer) const {
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[NI_MAXHOST];
    if (fd_ < 0 || ::connect(fd_, peer.ai_addr, peer.ai_addrlen) != 0) return "";
    if (getsockname(fd_, reinterpret_cast<sockaddr*>(&own), &length) != 0) return "";
    if (getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0)
      return "";
    return text;
  }

 private:
  int fd_;
};

}  // namespace

std::string address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) throw CommError("the host \"" + host + "\" is unknown: " + gai_strerror(error), "check MASTER_ADDR");
  const std::unique_ptr<addrinfo, AddressDeleter> list(found);
  for (const addrinfo* peer = found; peer; peer = peer->ai_next)
    if (std::string own = Socket(peer->ai_family).towards(*peer); !own.empty()) return own;
  throw CommError("no route to the host \"" + host + "\"", "check MASTER_ADDR and the network");
}

Rendezvous::Rendezvous(const LauncherEnv& env, std::chrono::milliseconds timeout) : host_(env.host), port_(env.port) {
  if (host_.empty()) {
    require_meeting_place(env);
    file_ = meeting_file(env);
    host_ = kLoopback;
    if (env.rank != 0) look_up(timeout);
  }
  connect(env, timeout);
  if (!file_.empty() && env.rank == 0) publish();
  await_ranks(env, timeout);
}

Rendezvous::~Rendezvous() {
  std::error_code ignored;
  if (published_) std::filesystem::remove(file_, ignored);
}

void Rendezvous::connect(const LauncherEnv& env, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port_);
  options.isServer = env.rank == 0 && !env.agent_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string place = host_ + ":" + std::to_string(port_);
  try {
    auto tcp = connected(host_, options);
    port_ = tcp->getPort();
    store_ = c10::make_intrusive<c10d::PrefixStore>("zero/" + env.attempt, tcp);
    store_->setTimeout(timeout);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    if (options.isServer)
      throw CommError(who(env) + "cannot listen at " + place + ": " + text.substr(0, text.find('\n')),
                      "another program may use the port: set MASTER_PORT to a free one");
    throw CommError(who(env) + "nobody answers at " + place + ": " + text.substr(0, text.find('\n')),
                    "check that rank 0 runs and that MASTER_ADDR and MASTER_PORT name it");
  }
}

// Written aside and renamed, so that a reader sees all of it or nothing.
void Rendezvous::publish() {
  const std::string draft = file_ + "." + std::to_string(getpid());
  std::ofstream out(draft, std::ios::trunc);
  out << port_ << ' ' << getpid() << '\n';
  out.close();
  std::error_code error;
  if (out) std::filesystem::rename(draft, file_, error);
  if (!out || error)
    throw CommError("rank 0: cannot write " + file_, "make the folder writable, or set MASTER_ADDR and MASTER_PORT");
  published_ = true;
}

void Rendezvous::look_up(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while ((port_ = read_port(file_)) == 0) {
    if (std::chrono::steady_clock::now() > deadline)
      throw CommError(
          "rank 0 has not published its port in " + file_ + " within " + std::to_string(timeout.count()) + " ms",
          "see rank 0's error, or set MASTER_ADDR and MASTER_PORT");
    std::this_thread::sleep_for(kPoll);
  }
}

void Rendezvous::await_ranks(const LauncherEnv& env, std::chrono::milliseconds timeout) const {
  const auto key = [](int rank) { return "rank/" + std::to_string(rank); };
  std::vector<std::string> keys;
  for (int r = 0; r < env.size; ++r) keys.push_back(key(r));
  const std::string place = host_ + ":" + std::to_string(port_);
  try {
    store_->set(key(env.rank), std::vector<std::uint8_t>{1});
    store_->wait(keys, timeout);
  } catch (const std::exception&) {
    throw CommError(who(env) + "not all " + std::to_string(env.size) + " ranks came to " + place + " within " +
                        std::to_string(timeout.count()) + " ms" + absent(*store_, keys),
                    "see their own errors, or raise ZERO_TIMEOUT");
  }
}

}  // namespace zero

#include "comm/torch/rendezvous.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <future>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/lifetimes.h"
#include "base/worker.h"
#include "comm/listener.h"
#include "comm/torch/torch_log.h"
#include "zero/error.h"

namespace zero {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(10);
constexpr auto kAfterwards = std::chrono::seconds(10);
constexpr const char* kCheckAddress = "check that rank 0 runs and that MASTER_ADDR and MASTER_PORT name it";

std::chrono::milliseconds until(Clock::time_point deadline) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()), std::chrono::milliseconds(1));
}

std::string who(const LauncherEnv& env) {
  return "rank " + std::to_string(env.rank) + ": ";
}

std::string meeting_file(const LauncherEnv& env) {
  std::string job = env.job;
  for (char& c : job)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error)
    throw ConfigError(who(env) + "there is no folder for temporary files: " + error.message(), "correct TMPDIR");
  return (folder / ("zero-" + std::to_string(getuid()) + "-" + job)).string();
}

void require_meeting_place(const LauncherEnv& env) {
  const std::string change = "set MASTER_ADDR to the host name of rank 0 and MASTER_PORT to a free port there";
  if (!env.one_host())
    throw ConfigError(who(env) + env.launcher + " started " + std::to_string(env.size) +
                          " ranks on several hosts without saying where rank 0 listens",
                      change);
  if (env.job.empty()) throw ConfigError(who(env) + env.launcher + " does not name its job", change);
}

// The first of the ranks, by their keys, that the store has not seen, if it still answers.
std::string absent(c10d::Store& store, const std::vector<std::string>& keys) try {
  for (std::size_t r = 0; r < keys.size(); ++r)
    if (!store.check({keys[r]})) return "; rank " + std::to_string(r) + " did not";
  return "";
} catch (const std::exception&) {
  return "; rank 0 does not answer any more";
}

// c10d tries again after pauses that it does not cut short, so it is to give up before we do.
c10d::TCPStoreOptions client_options(int port, Clock::time_point deadline) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = until(deadline) * 9 / 10;
  return options;
}

// Built on a thread that a Worker starts, for the sake of the thread that the server starts. It is left behind when
// what listens at the port never says a word, since the handshake of c10d waits for it without end. What c10d logs soon
// after is still held back.
c10::intrusive_ptr<c10d::TCPStore> connected(const std::string& host, const c10d::TCPStoreOptions& options,
                                             Clock::time_point deadline, bool debug) {
  std::packaged_task<c10::intrusive_ptr<c10d::TCPStore>()> connect(
      [host, options] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  auto store = connect.get_future();
  Worker().submit([&] { std::thread(std::move(connect)).detach(); }).wait();
  if (store.wait_until(deadline) == std::future_status::ready) return store.get();
  const auto quiet = std::make_shared<QuietTorch>(debug);
  std::thread([quiet, late = std::move(store)] { late.wait_for(kAfterwards); }).detach();
  throw CommError("no valid answer in time");
}

std::string own_address(const LauncherEnv& env) try {
  return address_towards(env.host, env.port);
} catch (const CommError& error) {
  throw CommError(who(env) + "there is no way to " + env.host + ":" + std::to_string(env.port) + ": " + error.what(),
                  "check MASTER_ADDR and the network");
}

// Where this rank finds rank 0: on rank 0 itself, and where all ranks share a host, the one address at which it
// listens. Where nobody knows, they share it if the address is one that other hosts cannot reach.
std::string meeting_address(const LauncherEnv& env) {
  if (env.host.empty()) return kLoopback;
  const bool elsewhere = env.rank != 0 && !env.one_host();
  if (env.agent_store || (elsewhere && env.knows_hosts())) return env.host;
  const std::string own = own_address(env);
  if (is_loopback(own) && (env.one_host() || !env.knows_hosts())) return own;
  if (env.one_host()) return kLoopback;
  if (!is_loopback(own)) return elsewhere ? env.host : own;
  throw ConfigError(
      who(env) + '"' + env.host + "\" is this host's loopback address, which the ranks on other hosts cannot reach",
      "set MASTER_ADDR to an address of this host that all hosts see");
}

}  // namespace

// What a process keeps of where it has met before.
struct Rendezvous::Place {
  // A process that was forked has no thread of the server to wait for.
  ~Place() {
    if (!origin.here()) static_cast<void>(server.release());
  }

  ProcessOfOrigin origin;
  int port = 0;
  c10::intrusive_ptr<c10d::Store> server;  // of a rank that listens
  int meetings = 0;
};

std::pair<std::unique_lock<std::mutex>, Rendezvous::Place&> Rendezvous::kept(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, Place> places;
  std::unique_lock lock(mutex);
  return {std::move(lock), places[name]};
}

Rendezvous::Rendezvous(const LauncherEnv& env, const InitOptions& options)
    : timeout_(options.timeout),
      deadline_(Clock::now() + timeout_),
      debug_(options.debug),
      host_(meeting_address(env)),
      port_(env.port) {
  if (env.host.empty()) {
    require_meeting_place(env);
    file_ = meeting_file(env);
  }
  place_ = file_.empty() ? address() : file_;
  if (port_ == 0) port_ = kept(place_).second.port;
  if (env.rank == 0 && !env.agent_store) listen(env);
  if (port_ == 0) look_up(env);
  connect(env);
  await_ranks(env);
}

Rendezvous::~Rendezvous() {
  std::error_code ignored;
  if (published_) std::filesystem::remove(file_, ignored);
}

void Rendezvous::listen(const LauncherEnv& env) {
  const auto [lock, place] = kept(place_);
  try {
    if (!place.server) {
      Listener listener = bind_listener(host_, port_);
      port_ = listener.port;
      c10d::TCPStoreOptions options = client_options(port_, deadline_);
      options.isServer = true;
      options.masterListenFd = listener.socket.release();
      place.server = connected(host_, options, deadline_, debug_);
      place.port = port_;
    }
  } catch (const std::exception& error) {
    throw CommError(who(env) + "cannot listen at " + named(env) + ": " + gist(error, debug_),
                    "another program may use the port: set MASTER_PORT to a free one");
  }
  if (file_.empty()) return;
  publish_port(file_, port_);
  published_ = true;
}

// c10d is let in only where somebody listens.
void Rendezvous::connect(const LauncherEnv& env) {
  try {
    await_listener(host_, port_, deadline_);
  } catch (const CommError& error) {
    throw CommError(who(env) + "nobody answers at " + named(env) + " within " + limit() + ": " + error.what(),
                    kCheckAddress);
  }
  try {
    store_ = connected(host_, client_options(port_, deadline_), deadline_, debug_);
  } catch (const std::exception& error) {
    throw CommError(
        who(env) + "what listens at " + named(env) + " does not answer as rank 0's store does: " + gist(error, debug_),
        std::string(kCheckAddress) + ", or set MASTER_PORT to a port that no other program uses");
  }
  const auto [lock, place] = kept(place_);
  place.port = port_;
  const std::string prefix = "zero/" + env.attempt + "/" + std::to_string(place.meetings++);
  store_ = c10::make_intrusive<c10d::PrefixStore>(prefix, store_);
  store_->setTimeout(timeout_);
}

void Rendezvous::look_up(const LauncherEnv& env) {
  while ((port_ = read_port(file_)) == 0) {
    if (Clock::now() > deadline_)
      throw CommError(who(env) + "rank 0 has not published its port in " + file_ + " within " + limit(),
                      "see rank 0's error, or set MASTER_ADDR and MASTER_PORT");
    std::this_thread::sleep_for(kPoll);
  }
}

void Rendezvous::await_ranks(const LauncherEnv& env) const {
  const auto key = [](int rank) { return "rank/" + std::to_string(rank); };
  std::vector<std::string> keys;
  for (int r = 0; r < env.size; ++r) keys.push_back(key(r));
  try {
    store_->set(key(env.rank), std::vector<std::uint8_t>{1});
    store_->wait(keys, until(deadline_));
  } catch (const std::exception&) {
    throw CommError(who(env) + "not all " + std::to_string(env.size) + " ranks came to " + named(env) + " within " +
                        limit() + absent(*store_, keys),
                    "see their own errors, check that all have the same MASTER_ADDR and MASTER_PORT, or raise "
                    "ZERO_TIMEOUT");
  }
}

// As the user has written it too, where another address stands for that.
std::string Rendezvous::named(const LauncherEnv& env) const {
  return address() + (env.host.empty() || env.host == host_ ? "" : " (MASTER_ADDR=" + env.host + ")");
}

}  // namespace zero

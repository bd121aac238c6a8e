// The ranks of a run: who we are, how many we are, and the communicator that joins us.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero/communicator.h"

namespace zero {

enum class Transport : std::uint8_t { automatic, tcp, gloo };

// "auto", "tcp" or "gloo"; none: it is no transport's name.
std::optional<Transport> transport_named(std::string_view name);

// Of a program that starts its ranks itself: what a launcher's variables say otherwise. Which ranks share a host, they
// find out.
struct Ranks {
  int rank = 0;
  int size = 1;
  std::string host = {};  // of rank 0, as all ranks reach it,
  int port = 0;           // and where they meet there
  // A c10d::TCPStore of the program listens there, as long as the ranks make groups; else rank 0's init() makes one.
  bool has_store = false;
};

struct InitOptions {
  // How long an operation may wait for its peers before it fails. ZERO_TIMEOUT (seconds) overrides it.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Compares rank, sequence number, operation and shapes before each collective, so that ranks that
  // diverge get an error instead of hanging. ZERO_CHECK=0|1 overrides it.
#ifdef NDEBUG
  bool check = false;
#else
  bool check = true;
#endif
  // What CPU memory travels by. `automatic`: shared memory where ranks share a host, streams of TCP between hosts;
  // `tcp` and `gloo`: streams, or Gloo, between all ranks. ZERO_TRANSPORT=auto|tcp|gloo overrides it.
  Transport transport = Transport::automatic;
  // Declares that so many consecutive ranks of a host form a host of their own: to try out on one machine
  // what several would do, threads as ranks included. 0: hosts are what they are. ZERO_RANKS_PER_HOST overrides it.
  int ranks_per_host = 0;
  // Lets LibTorch's CPU tensors of 128 KiB and more come from an arena that keeps their pages for the next
  // of their size: no page faults in a steady step, no fragmentation, never more pages than were in use at
  // once. For the whole process, from the first init() that wants it. ZERO_ARENA=0|1 overrides it.
  bool arena = true;
  // Shows what LibTorch itself says when ranks do not meet: its log, which is otherwise withheld in the whole process
  // while they do, and all of its exceptions' texts. ZERO_DEBUG=0|1 overrides it.
  bool debug = false;
  // Who this process is, whatever the launcher's variables say.
  std::optional<Ranks> ranks = {};
};

class Seats;

// A value; engines on several threads may be built of one. Functions exchange nothing.
class World {
 public:
  World() = default;  // one rank
  // Of a group, as Communicator::split() makes them; of its ranks on this rank's host, which and how many.
  World(Communicator communicator, int local_rank, int local_size)
      : communicator_(std::move(communicator)), local_rank_(local_rank), local_size_(local_size) {}

  // Of some of its ranks, with the numbers of its engines.
  World of(const Communicator& some) const;

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  const Communicator& communicator() const { return communicator_; }
  // The lowest number that none of this world's engines on this rank has, its own until it is let go of. Thread-safe.
  std::shared_ptr<const int> take_seat() const;

 private:
  static std::shared_ptr<Seats> new_seats();

  Communicator communicator_;
  std::shared_ptr<Seats> seats_ = new_seats();
  int local_rank_ = 0;
  int local_size_ = 1;
};

// Joins the ranks that a launcher started, found by its environment variables, in this order:
// torchrun and `zero launch` (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT; the agent's store is used when TORCHELASTIC_USE_AGENT_STORE says so), Open MPI
// (OMPI_COMM_WORLD_*), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID); none of them: one rank. Or
// as InitOptions::ranks says.
// May be called again, by every rank equally often.
// Throws ConfigError for variables or ranks that contradict each other, CommError when the ranks do not meet.
World init(const InitOptions& options = {});

// `size` worlds for as many threads of this process, each thread a rank: for tests and examples. Throws ConfigError for
// sizes that cannot be. Not collective: one thread calls it, and gives each of the others its world.
std::vector<World> thread_worlds(int size, const InitOptions& options = {});

}  // namespace zero

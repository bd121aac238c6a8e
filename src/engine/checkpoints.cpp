// Engines save and load themselves.
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "engine/impl.h"
#include "persist/checkpoint_reader.h"
#include "persist/checkpoint_writer.h"
#include "persist/folders.h"
#include "persist/gathered.h"
#include "persist/retention.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

// What `work` throws, the same on every rank, or a CheckpointError of all that the ranks' `work` throw.
void together(const Communicator& all, const std::string& what, const std::function<void()>& work) {
  const std::string faults = gather_faults(all, fault_of(work));
  if (!faults.empty()) throw CheckpointError(what + ": " + faults);
}

// Rank 0 says which.
std::string chosen(Env& env, const Communicator& all, const std::string& folder, std::optional<std::int64_t> step) {
  std::string place, damaged;
  together(all, "no checkpoint to load from " + folder, [&] {
    if (all.rank() != 0) return;
    if (step) {
      place = folder + "/" + checkpoint_name(*step);
      return;
    }
    std::vector<std::string> faults;
    const auto newest = newest_checkpoint(env, folder, &faults);
    for (const std::string& fault : faults) damaged += "; " + fault;
    if (!newest) throw CheckpointError("there is none in " + folder + " that is whole" + damaged);
    place = newest->folder;
  });
  return gather_texts(all, place).front();
}

}  // namespace

void prepare_checkpoints(const World& world, const std::string& folder) {
  require_shared_folder(posix_env(), world.communicator(), folder);
  together(world.communicator(), "what is left in " + folder + " cannot be removed", [&] {
    if (world.rank() == 0) clean_partials(posix_env(), folder);
  });
}

// On the exchange's thread, as an operation that all ranks agree on. A checkpoint that fails is no fault of the ranks'.
void Engine::Impl::exchange_files(const std::function<void(const Communicator& all)>& work) {
  std::exception_ptr failure;
  exchange_.run({Exchange::Kind::setup, -1, 0, [&](const Groups& groups) {
                   try {
                     work(groups.along(Axis::data));
                   } catch (const CheckpointError&) {
                     failure = std::current_exception();
                   }
                 }});
  if (failure) std::rethrow_exception(failure);
}

std::string Engine::Impl::save(const std::string& folder, const SaveOptions& options) {
  Snapshot snapshot(state(), exchange_.rank());
  const Block memory = accounts_.take(snapshot.bytes(), Owner::snapshot);
  snapshot.take(memory.view().data);
  const CheckpointOptions how{.plan = plan_.label() + " " + std::string(name(plan_.precision())),
                              .mesh = exchange_.mesh(),
                              .user = options.user,
                              .replace = options.replace};
  std::string saved;
  exchange_files([&](const Communicator& all) {
    saved = write_checkpoint(posix_env(), all, folder, snapshot, how);
    if (options.keep_last == 0) return;
    together(all, saved + " is saved, but older ones could not be removed", [&] {
      if (all.rank() == 0) prune(posix_env(), folder, {options.keep_last, options.keep_every}, steps_);
    });
  });
  return saved;
}

Restored Engine::Impl::load(const std::string& folder, std::optional<std::int64_t> step) {
  check_alive();
  std::optional<Checkpoint> checkpoint;
  exchange_files([&](const Communicator& all) {
    const std::string place = chosen(posix_env(), all, folder, step);
    together(all, "the checkpoint " + place + " cannot be loaded",
             [&] { checkpoint = Checkpoint::open(posix_env(), place); });
  });
  CheckpointSource source(posix_env(), *checkpoint);
  load_state(source);
  return {.folder = checkpoint->folder(), .step = steps_, .user = checkpoint->manifest().user};
}

std::string Engine::save(const std::string& folder, const SaveOptions& options) {
  return impl_->save(folder, options);
}

Restored Engine::load(const std::string& folder, std::optional<std::int64_t> step) {
  return impl_->load(folder, step);
}

}  // namespace zero

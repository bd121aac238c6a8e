// Engines save and load themselves.
#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "comm/gathered_texts.h"
#include "engine/adapted_source.h"
#include "engine/engine_saving.h"
#include "partition/tiles.h"
#include "persist/checkpoint_reader.h"
#include "persist/checkpoint_writer.h"
#include "persist/folders.h"
#include "persist/gathered.h"
#include "persist/retention.h"
#include "persist/saver.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

// What `work` throws, the same on every rank, or a CheckpointError of all that the ranks' `work` throw.
void together(const Communicator& all, const std::string& what, const std::function<void()>& work) {
  const std::string faults = gather_faults(all, fault_of(work));
  if (!faults.empty()) throw CheckpointError(what + ": " + faults);
}

std::exception_ptr failure_of(const std::function<void()>& work) {
  try {
    work();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

std::string nothing_in(const std::string& folder) {
  return "no checkpoint to load from " + folder;
}

// Where they lie, the newest first, or that of `step` alone. Rank 0 says which there are.
std::vector<std::string> candidates(Env& env, const Communicator& all, const std::string& folder,
                                    std::optional<std::int64_t> step) {
  std::string names;
  together(all, nothing_in(folder), [&] {
    if (all.rank() != 0) return;
    for (const CheckpointPlace& place : list_checkpoints(env, folder))
      if (!step || place.step == *step) names = checkpoint_name(place.step) + '\n' + names;
    if (!names.empty()) return;
    throw CheckpointError(step ? "there is no " + checkpoint_name(*step) : "there is none in " + folder);
  });
  std::istringstream lines(gather_texts(all, names).front());
  std::vector<std::string> places;
  for (std::string name; std::getline(lines, name);) places.push_back(folder + "/" + name);
  return places;
}

std::vector<RestoredTensor> tensors_of_user(CheckpointSource& source, const Manifest& manifest) {
  std::vector<RestoredTensor> tensors;
  for (const StoredUserTensor& stored : manifest.user_tensors) {
    const std::int64_t bytes = elements_of(stored.shape) * size_of(stored.dtype);
    tensors.push_back({stored.name, stored.dtype, stored.shape, std::vector<char>(static_cast<std::size_t>(bytes))});
    source.read_user(tensors.size() - 1, tensors.back().values.data());
  }
  return tensors;
}

}  // namespace

void prepare_checkpoints(const World& world, const std::string& folder) {
  require_shared_folder(checkpoint_env(), world.communicator(), folder);
  together(world.communicator(), "what is left in " + folder + " cannot be removed", [&] {
    if (world.rank() == 0) clean_partials(checkpoint_env(), folder);
  });
}

Saving::Saving(Trained& trained, EngineRanks& ranks, Liveness& life, Parameters& parameters, Accumulation& accumulation,
               Step& step, const Entry& entry, std::vector<Replicated> replicated)
    : trained_(trained),
      ranks_(ranks),
      life_(life),
      parameters_(parameters),
      accumulation_(accumulation),
      step_(step),
      entry_(entry),
      replicated_(std::move(replicated)) {}

// A checkpoint that fails is no fault of the ranks': they go on.
void Saving::exchange_files(Exchange::Kind kind, const std::function<void(const Communicator& all)>& work) {
  std::exception_ptr failure;
  ranks_.confer(kind, [&](const Communicator& all) {
    try {
      work(all);
    } catch (const CheckpointError&) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

// Of a save under way: until it has ended, or not at all, on all ranks alike.
void Saving::make_way(WhileSaving how) {
  if (!saver_ || !saver_->under_way()) return;
  bool ended = how == WhileSaving::wait;
  if (!ended)
    exchange_files(Exchange::Kind::save, [&](const Communicator& all) {
      ended = std::ranges::count(gather_numbers(all, saver_->ended() ? 1 : 0), 0) == 0;
    });
  if (!ended)
    throw CheckpointError("the save in the background before this one is still under way",
                          "save less often, or wait for it: WhileSaving::wait");
  try {
    saver_->finish();
  } catch (const CheckpointError& error) {
    throw CheckpointError(std::string("the save in the background before this one failed: ") + error.what());
  }
}

SaveOrder Saving::order(const std::string& folder, const SaveOptions& options) {
  const std::string label = trained_.plan().label();
  return {
      folder,
      {state(options.frozen), ranks_.rank_of_all(), options.tensors},
      {.plan = label + (label.find(',') == label.npos ? " " : ", ") + std::string(name(trained_.plan().precision())),
       .mesh = ranks_.whole_mesh(),
       .user = options.user,
       .replace = options.replace,
       .origin = behind_},
      {options.keep_last, options.keep_every}};
}

// Copies what this rank saves; returns why that was not possible.
std::string Saving::copy(Snapshot& snapshot) {
  const std::int64_t bytes = snapshot.bytes();
  const std::string fault = fault_of([&] {
    if (snapshot_.bytes() < bytes) {
      snapshot_.reset();
      snapshot_ = ranks_.accounts().take_of_host(bytes, Owner::snapshot);
    }
    snapshot.take(snapshot_.view().data);
  });
  return fault.empty() ? fault : "a copy of " + std::to_string(bytes) + " bytes: " + fault;
}

// What fails on one rank before anything is saved, all ranks hear of; a mistake that all of them make each may tell.
std::string Saving::save(const std::string& folder, const SaveOptions& options) {
  return entry_("save()", {}, [&] {
    make_way(options.while_saving);
    return write(folder, options);
  });
}

// Before state(), in which ranks wait for each other.
void Saving::require_ready(const SaveOptions& options) {
  naming_rank(ranks_.rank_of_all(), [&] {
    require_user_json(options.user);
    entry_.require("state()", {.module = true, .idle = true, .no_scope = true});
    accumulation_.apply_zero_grad();
    if (accumulation_.micro() > 0) accumulation_.gradients().show_placeholders();
    if (!accumulation_.partly_emptied()) accumulation_.require_no_gradients("state()");  // else state() asks the others
    look_at_buffers();
  });
}

std::string Saving::write(const std::string& folder, const SaveOptions& options) {
  // What `failure` is on other ranks too, each tells itself; what it is on some, all are told, and nothing is saved.
  const auto agree = [&](const std::exception_ptr& failure, const std::function<void(const Communicator& all)>& then) {
    bool everywhere = false;
    exchange_files(Exchange::Kind::save, [&](const Communicator& all) {
      everywhere = std::ranges::count(gather_numbers(all, failure ? 1 : 0), 0) == 0;
      if (everywhere) return;
      together(all, "nothing is saved to " + folder, [&] {
        if (failure) std::rethrow_exception(failure);
      });
      then(all);
    });
    if (everywhere) std::rethrow_exception(failure);
  };
  agree(failure_of([&] { require_ready(options); }), [](const Communicator&) {});
  std::optional<SaveOrder> order;
  const std::exception_ptr failure = failure_of([&] { order.emplace(this->order(folder, options)); });
  const std::string fault = order && options.background ? copy(order->snapshot) : "";
  std::string saved = folder + "/" + checkpoint_name(step_.steps());
  agree(failure, [&](const Communicator& all) {
    together(all, "nothing is saved to " + folder, [&] {
      if (!fault.empty()) throw CheckpointError(fault);
    });
    if (!options.background) {
      saved = save_checkpoint(checkpoint_env(), all, *order);
      return;
    }
    if (!saver_) saver_ = std::make_unique<Saver>(checkpoint_env(), all.split(0, all.rank()));
  });
  if (options.background) saver_->begin(std::move(*order));
  return saved;
}

// In the report of the step behind which it has ended on all ranks.
void Saving::report_save(StepReport& report) {
  try {
    report.saved = saver_->finish();
  } catch (const CheckpointError& error) {
    report.save_fault = error.what();
  }
}

Restored Saving::load_one(const std::string& place, const LoadOptions& options) {
  std::optional<Checkpoint> checkpoint;
  std::optional<CheckpointSource> source;
  std::vector<RestoredTensor> tensors;
  Lineage lineage;
  exchange_files(Exchange::Kind::load, [&](const Communicator& all) {
    together(all, "it is not loaded", [&] {
      checkpoint = Checkpoint::open(checkpoint_env(), place);
      source.emplace(checkpoint_env(), *checkpoint);
      tensors = tensors_of_user(*source, checkpoint->manifest());
      lineage = read_lineage(checkpoint_env(), place);
    });
  });
  look_at_buffers();
  TiledSource tiled(*source, trained_.tiles());
  AdaptedSource adapted(tiled, expected_state(), buffers_of_state(), options, parameters_.micro_batch().seed());
  take_over(adapted);
  if (!options.weights_only) *behind_ = Origin{step_.steps(), lineage};
  return {.folder = place, .step = step_.steps(), .user = checkpoint->manifest().user, .tensors = std::move(tensors)};
}

// One that turns out to be damaged is written over by the one before.
Restored Saving::load(const std::string& folder, const LoadOptions& options) {
  return entry_("load()", {}, [&] { return load_newest(folder, options); });
}

Restored Saving::load_newest(const std::string& folder, const LoadOptions& options) {
  make_way(WhileSaving::wait);
  std::vector<std::string> places;
  exchange_files(Exchange::Kind::load,
                 [&](const Communicator& all) { places = candidates(checkpoint_env(), all, folder, options.step); });
  std::string damaged;
  for (const std::string& place : places) try {
      return load_one(place, options);
    } catch (const CheckpointError& error) {
      damaged += "; " + place + ": " + error.what();
    }
  throw CheckpointError(nothing_in(folder) + ": there is none that is whole" + damaged);
}

}  // namespace zero

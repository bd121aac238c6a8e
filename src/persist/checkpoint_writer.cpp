#include "persist/checkpoint_writer.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/system_random.h"
#include "base/text.h"
#include "comm/gathered_texts.h"
#include "persist/checkpoint_reader.h"
#include "persist/folders.h"
#include "persist/gathered.h"
#include "persist/json_node.h"
#include "persist/rank_file.h"
#include "persist/retention.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr int kDeepest = 100;  // of the program's values

// What is left behind when this fails, the next start removes.
template <class Work>
void attempt(Work&& work) {
  (void)fault_of(std::forward<Work>(work));
}

class Save {
 public:
  Save(Env& env, const Communicator& communicator, const std::string& folder, const Snapshot& snapshot,
       const CheckpointOptions& options)
      : env_(env),
        communicator_(communicator),
        folder_(folder),
        snapshot_(snapshot),
        options_(options),
        name_(checkpoint_name(snapshot.scalars().steps)),
        final_(folder + "/" + name_),
        partial_(final_ + std::string(kPartial)) {}

  std::string run() {
    const std::vector<std::int64_t> bytes = gather_numbers(communicator_, snapshot_.bytes());
    const std::int64_t all = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
    on_rank_0([&] { prepare(all); });
    agree();
    write(*std::ranges::max_element(bytes));
    const std::vector<std::string> parts = gather_texts(communicator_, fault_.empty() ? to_text(part_) : "");
    on_rank_0([&] { publish(parts); });
    agree();
    return final_;
  }

 private:
  template <class Work>
  void attempt_unless_failed(Work&& work) {
    if (fault_.empty()) fault_ = fault_of(std::forward<Work>(work));
  }
  template <class Work>
  void on_rank_0(Work&& work) {
    if (communicator_.rank() == 0) attempt_unless_failed(std::forward<Work>(work));
  }

  // Goes on only where no rank has failed.
  void agree() {
    const std::string faults = gather_faults(communicator_, fault_);
    if (faults.empty()) return;
    file_.reset();
    attempt([&] { communicator_.barrier().wait(); });  // then nobody has a file open
    if (made_partial_) attempt([&] { remove_folder(env_, partial_); });
    throw CheckpointError(name_ + " was not saved to " + in_quotes(folder_) + ": " + faults);
  }

  void prepare(std::int64_t bytes) {
    require_user_json(options_.user);
    create_lasting_folder(env_, folder_);
    lock_ = lock_checkpoints(env_, folder_);
    if (!lock_)
      throw CheckpointError("another save into this folder, or a removal, is under way",
                            "wait for it, or give each run a folder of its own");
    clean_locked(env_, folder_);
    if (!options_.replace && env_.exists(final_) && verify(env_, final_).empty())
      throw CheckpointError(name_ + " is there already, undamaged",
                            "go on from it, replace it (SaveOptions::replace), or save to another folder");
    lineage_ =
        next_lineage(list_checkpoints(env_, folder_), options_.origin ? *options_.origin : std::optional<Origin>());
    const std::int64_t room = env_.free_bytes(folder_);
    if (room < bytes)
      throw CheckpointError("the file system has room for " + std::to_string(room) + " bytes, the checkpoint has " +
                            std::to_string(bytes));
    made_partial_ = true;
    env_.create_folder(partial_);
  }

  void write(std::int64_t longest) {
    attempt_unless_failed([&] { file_.emplace(env_, partial_, snapshot_); });
    for (std::int64_t done = 0; done < longest; done += options_.round) {
      attempt_unless_failed([&] { file_->write(options_.round); });
      agree();
    }
    attempt_unless_failed([&] { part_ = file_->finish(); });
    agree();
  }

  Manifest manifest_of_parts(const std::vector<std::string>& texts) const {
    Manifest manifest{library_version(), options_.plan, options_.mesh, snapshot_.scalars(), options_.user};
    for (const StateTensor& tensor : snapshot_.tensors()) manifest.tensors.push_back({tensor});
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      RankPart part = rank_part_of(texts[rank], "what rank " + std::to_string(rank) + " tells of its file");
      for (auto& [tensor, piece] : part.pieces) {
        piece.at.file = rank;
        manifest.tensors.at(tensor).pieces.push_back(std::move(piece));
      }
      for (StoredUserTensor& tensor : part.user_tensors) {
        if (std::ranges::find(manifest.user_tensors, tensor.name, &StoredUserTensor::name) !=
            manifest.user_tensors.end())
          throw CheckpointError("several tensors of the program's are called " + in_quotes(tensor.name),
                                "give each a name of its own, with the rank in it where every rank has one");
        for (StoredBytes& at : tensor.pieces) at.file = rank;
        manifest.user_tensors.push_back(std::move(tensor));
      }
      manifest.files.push_back(std::move(part.file));
    }
    sort_pieces(manifest);
    check(manifest, "the checkpoint");
    return manifest;
  }

  void publish(const std::vector<std::string>& parts) {
    write_text(env_, partial_ + "/" + std::string(kLineageFile), to_text(lineage_));
    write_text(env_, partial_ + "/" + std::string(kManifest), to_text(manifest_of_parts(parts)));
    env_.sync_folder(partial_);
    const std::string replaced = final_ + std::string(kReplaced);
    const bool replaces = env_.exists(final_);
    const auto give_back = [&] {
      if (replaces) attempt([&] { env_.rename(replaced, final_); });
    };
    if (replaces) env_.rename(final_, replaced);
    try {
      env_.rename(partial_, final_);
    } catch (...) {
      give_back();
      throw;
    }
    try {
      env_.sync_folder(folder_);
    } catch (...) {
      attempt([&] { env_.rename(final_, partial_); });
      give_back();
      throw;
    }
    made_partial_ = false;
    if (options_.origin) *options_.origin = Origin{snapshot_.scalars().steps, lineage_};
    if (replaces) attempt([&] { remove_folder(env_, replaced); });
  }

  Env& env_;
  const Communicator& communicator_;
  const std::string folder_;
  const Snapshot& snapshot_;
  const CheckpointOptions& options_;
  const std::string name_, final_, partial_;
  Env::Lock lock_;  // rank 0's, as the next
  Lineage lineage_;
  bool made_partial_ = false;
  std::optional<RankFile> file_;
  RankPart part_;
  std::string fault_;
};

}  // namespace

std::string write_checkpoint(Env& env, const Communicator& communicator, const std::string& folder,
                             const Snapshot& snapshot, const CheckpointOptions& options) {
  return Save(env, communicator, folder, snapshot, options).run();
}

void require_user_json(const std::string& user) {
  if (user.empty()) return;
  if (!Json::accept(user))
    throw CheckpointError("the program's values are no JSON: " + shown(user), "save JSON as `user`");
  (void)parse_json(user, "the program's values", kDeepest);
}

void require_shared_folder(Env& env, const Communicator& communicator, const std::string& folder) {
  const bool writes = communicator.rank() == 0;
  const std::string token = gather_texts(communicator, writes ? random_name(std::string(kTokenPrefix)) : "").front();
  const std::string path = folder + "/" + token;
  std::string fault;
  Env::Lock lock;  // so that nobody who cleans the folder takes the token for one that was left
  if (writes)
    fault = fault_of([&] {
      create_lasting_folder(env, folder);
      lock = lock_checkpoints(env, folder);
      write_text(env, path, token);
    });
  std::string faults = gather_faults(communicator, fault);
  if (faults.empty()) {
    if (!writes)
      fault = fault_of([&] {
        if (!env.exists(path)) throw CheckpointError("does not find there what rank 0 has written");
        if (read_text(env, path, static_cast<std::int64_t>(token.size())) != token)
          throw CheckpointError("does not read there what rank 0 has written");
      });
    faults = gather_faults(communicator, fault);
    if (!faults.empty()) faults = "the ranks do not share it: " + faults;
  }
  if (writes) attempt([&] { env.remove(path); });
  if (!faults.empty())
    throw CheckpointError("checkpoints cannot be saved to " + in_quotes(folder) + ": " + faults,
                          "give a folder that all hosts share, and that can be written");
}

}  // namespace zero

// Files of a folder that get their names when all of them are on the disk. No torch.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "persist/env.h"
#include "persist/folders.h"
#include "zero/error.h"

namespace zero {

// Until publish() each is NAME.partial. What is not published is removed, as far as that can be done.
class NewFiles {
 public:
  NewFiles(Env& env, std::string folder) : env_(env), folder_(std::move(folder)) {}
  ~NewFiles() {
    for (const std::string& name : names_) try {
        env_.remove(partial(name));
      } catch (const CheckpointError&) {  // then the next that writes this name removes it
      }
  }
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  std::unique_ptr<WritableFile> create(const std::string& name) {
    if (env_.exists(partial(name))) env_.remove(partial(name));
    std::unique_ptr<WritableFile> file = env_.create(partial(name));
    names_.push_back(name);
    return file;
  }

  // In the order in which they were made. All of them are closed.
  void publish() {
    for (; !names_.empty(); names_.erase(names_.begin()))
      env_.rename(partial(names_.front()), folder_ + "/" + names_.front());
    env_.sync_folder(folder_);
  }

 private:
  std::string partial(const std::string& name) const { return folder_ + "/" + name + std::string(kPartial); }

  Env& env_;
  std::string folder_;
  std::vector<std::string> names_;
};

}  // namespace zero

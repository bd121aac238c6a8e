// Whatever `zero` is given that cannot work: one clear message of ours, the right exit code, nothing hanging, nothing
// left. The table is in bad/.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "procs/bad/data.h"
#include "procs/bad/documents.h"
#include "procs/bad/options.h"
#include "procs/bad/outputs.h"
#include "procs/bad/surroundings.h"

namespace bad_inputs_test {

using procs::bad::File;
using procs::bad::Row;
using procs::bad::Rows;

namespace fs = std::filesystem;

constexpr const char* kConfig = R"({"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
"num_attention_heads": 4, "vocab_size": 256})";
constexpr const char* kPlan = R"({"plan": "zero3", "model": "micro", "batch": 2, "seq": 24})";
constexpr const char* kProfile = R"({"name": "x", "copy_bandwidth": 1e9, "update_bandwidth": 1e9,
"collective_bandwidth": 1e9, "collective_seconds": 1e-5, "network_bandwidth": 1e9, "disk_bandwidth": 1e9,
"bf16": {"matrix_flops": 1e9, "matrix_bandwidth": 1e9, "attention_flops": 1e9, "sweep_bandwidth": 1e9,
"operator_seconds": 1e-6}})";

void make_socket(const std::string& path) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) throw std::runtime_error(path);
  ::close(fd);
}

void make(const std::string& path, const File& file) {
  fs::create_directories(fs::path(path).parent_path());
  switch (file.kind) {
    case File::Kind::folder: fs::create_directory(path); break;
    case File::Kind::pipe: ::mkfifo(path.c_str(), 0600); break;
    case File::Kind::socket: make_socket(path); break;
    case File::Kind::link: fs::create_symlink(file.content, path); break;
    case File::Kind::sparse:
      std::ofstream(path).close();
      fs::resize_file(path, std::stoull(file.content));
      break;
    case File::Kind::file: std::ofstream(path, std::ios::binary) << file.content; break;
  }
}

// Everything in a folder: kinds, modes, sizes, what is in small files, where links lead.
std::string listing(const std::string& folder) {
  std::vector<std::string> lines;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const fs::file_status status = entry.symlink_status();
    std::string line = entry.path().string() + " " + std::to_string(static_cast<int>(status.type())) + " " +
                       std::to_string(static_cast<unsigned>(status.permissions()));
    if (fs::is_symlink(status)) line += " " + fs::read_symlink(entry.path()).string();
    if (fs::is_regular_file(status) && entry.file_size() < 1'000'000)
      line += " " + procs::read_all(entry.path().string());
    lines.push_back(line);
  }
  std::ranges::sort(lines);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string command_of(const Row& row) {
  std::string text = row.shell.empty() ? "" : row.shell + "; ";
  for (const auto& [name, value] : row.variables) text += name + "=" + value.substr(0, 40) + " ";
  text += "zero";
  for (const std::string& word : row.words) text += " '" + word.substr(0, 60) + "'";
  for (const File& file : row.files) text += "\n  with " + file.name + ": " + file.content.substr(0, 80);
  return text;
}

class Check {
 public:
  explicit Check(const Row& row) : row_(row) {
    for (const auto& [name, content] :
         {std::pair("config.json", kConfig), {"plan.json", kPlan}, {"profile.json", kProfile}, {"ds.json", "{}"}})
      make(folder_.path(name), {.name = name, .content = content});
    for (const File& file : row.files) make(folder_.path(file.name), file);
  }

  // What is wrong with the answer; empty: nothing.
  std::string run() {
    const std::string before = listing(folder_.path(""));
    const procs::Result result = procs::run(command(), procs::with({{"XDG_CACHE_HOME", "none"}}, row_.variables));
    expect(result.code == row_.code, "exit code " + std::to_string(result.code) + ", not " + std::to_string(row_.code));
    expect(result.err.starts_with("zero: "), "the message is not ours");
    const auto lines = std::ranges::count(result.err, '\n');
    expect((lines == 1 || lines == 2) && result.err.ends_with('\n'), "not on one or two lines");
    expect(result.err.find("\nzero: ") == std::string::npos, "more than one message");
    expect(result.err.size() < 1500, "the message is too long");
    expect(std::ranges::none_of(result.err, controls), "the message has control characters");
    for (const std::string& part : row_.says) expect(procs::contains(result.err, part), "it does not say: " + part);
    for (const char* raw : kRaw) expect(!procs::contains(result.err, raw), std::string("it says: ") + raw);
    expect(row_.prints || result.out.empty(), "standard output: " + result.out);
    expect(listing(folder_.path("")) == before, "files are not what they were");
    return faults_.empty() ? "" : command_of(row_) + faults_ + "\n  " + result.err.substr(0, 3000);
  }

 private:
  static constexpr const char* kRaw[] = {"terminate called",
                                         "what():",
                                         "filesystem error",
                                         "c10::",
                                         "Exception raised",
                                         "json.exception",
                                         "std::",
                                         "basic_string",
                                         "[enforce fail",
                                         "bad_alloc",
                                         "stoi",
                                         "vector"};

  static bool controls(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f; }

  procs::Words command() const {
    procs::Words words{"env", "-C", folder_.path("")};
    if (!row_.shell.empty()) words = procs::joined(words, {"bash", "-c", row_.shell + "; exec \"$0\" \"$@\""});
    return procs::joined(words, procs::zero(row_.words));
  }
  void expect(bool good, const std::string& what) {
    if (!good) faults_ += "\n  " + what;
  }

  const Row& row_;
  procs::Folder folder_;
  std::string faults_;
};

// All of them, as many at once as there are processors.
void check(const Rows& rows) {
  const procs::Orphanage orphanage;
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::vector<std::string> faults;
  const auto work = [&] {
    for (std::size_t i = next++; i < rows.size(); i = next++)
      if (const std::string fault = Check(rows[i]).run(); !fault.empty()) {
        const std::lock_guard lock(mutex);
        faults.push_back(fault);
      }
  };
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  for (const std::string& fault : faults) ADD_FAILURE() << fault;
  EXPECT_EQ(orphanage.survivors(), 0);
}

TEST(BadInputs, Options) {
  check(procs::bad::of_options());
}
TEST(BadInputs, Documents) {
  check(procs::bad::of_documents());
}
TEST(BadInputs, Data) {
  check(procs::bad::of_data());
}
TEST(BadInputs, Outputs) {
  check(procs::bad::of_outputs());
}
TEST(BadInputs, Environment) {
  check(procs::bad::of_environment());
}
TEST(BadInputs, Limits) {
  check(procs::bad::of_limits());
}

TEST(BadInputs, AreMany) {
  std::size_t count = 0;
  for (const Rows& rows : {procs::bad::of_options(), procs::bad::of_documents(), procs::bad::of_data(),
                           procs::bad::of_outputs(), procs::bad::of_environment(), procs::bad::of_limits()})
    count += rows.size();
  EXPECT_GE(count, 300U);
}

}  // namespace bad_inputs_test

// The program `zero` under test, something small for it to do, and ports to meet at.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "procs/program.h"

namespace procs {

using Words = std::vector<std::string>;

inline const std::string kZero = ZERO_BINARY;

inline Words joined(Words head, const Words& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}

inline Words zero(const Words& arguments) {
  return joined({kZero}, arguments);
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// In columns: characters of UTF-8.
inline std::size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t most = 0;
  for (std::string line; std::getline(lines, line);) {
    std::size_t width = 0;
    for (const char c : line) width += (c & 0xc0) != 0x80;
    most = std::max(most, width);
  }
  return most;
}

// What rank `rank` wrote, in an output of `zero launch`.
inline std::string said_by(int rank, const std::string& output) {
  const std::string prefix = "[" + std::to_string(rank) + "] ";
  std::istringstream lines(output);
  std::string text;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(prefix)) text += line.substr(prefix.size()) + '\n';
  return text;
}

// A folder with a small text, gone at the end.
class Folder {
 public:
  Folder() {
    ::mkdtemp(path_.data());
    std::ofstream out(path("text"));
    for (unsigned i = 0, state = 1; i < 6000; ++i, state = state * 1103515245 + 12345)
      out << "word" << (state >> 16) % 100 << (i % 12 ? ' ' : '\n');
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  bool has(const std::string& name) const { return std::filesystem::exists(path(name)); }
  nlohmann::json document(const std::string& name) const { return nlohmann::json::parse(read_all(path(name))); }

  Words small(const Words& more) const {
    return joined({"--model", "micro", "--data", path("text"), "--seq", "24", "--batch", "2"}, more);
  }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "zero_test.XXXXXX").string();
};

// A port that no other program is given while it lives. Free: the program under test may listen there.
class Port {
 public:
  enum class Use { free, listening };

  explicit Port(Use use = Use::free) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t length = sizeof address;
    auto* const own = reinterpret_cast<sockaddr*>(&address);
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd_, own, length) != 0 || ::getsockname(fd_, own, &length) != 0) throw std::runtime_error("bind");
    if (use == Use::listening) ::listen(fd_, 8);
    number_ = std::to_string(ntohs(address.sin_port));
  }
  ~Port() { ::close(fd_); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  const std::string& number() const { return number_; }
  int fd() const { return fd_; }

 private:
  int fd_;
  std::string number_;
};

// The same command at the same time, once with each set of variables.
inline std::vector<Result> run_together(const Words& command, const std::vector<Variables>& each) {
  std::vector<std::unique_ptr<Program>> programs;
  for (const Variables& variables : each) programs.push_back(std::make_unique<Program>(command, variables));
  std::vector<Result> results;
  for (const auto& program : programs) results.push_back(program->finish());
  return results;
}

// What torchrun tells rank `rank` of `ranks` on this host when rank 0 serves the store.
inline Variables rank_variables(int rank, int ranks, const std::string& port) {
  const std::string number = std::to_string(rank), size = std::to_string(ranks);
  return {{"RANK", number},           {"WORLD_SIZE", size},         {"LOCAL_RANK", number},
          {"LOCAL_WORLD_SIZE", size}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
}

inline Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

}  // namespace procs

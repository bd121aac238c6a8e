// Hosts on one machine: network namespaces, each with an interface `net0` of its own, joined by a bridge. What ranks in
// them send each other goes over these interfaces; memory is not shared between them as far as libzero can tell. Needs
// root and `ip` (iproute2).
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "procs/program.h"

namespace procs {

class VirtualHosts {
 public:
  explicit VirtualHosts(int count) : count_(count) {
    ip({"netns", "add", name("switch")});
    in("switch", {"link", "add", "name", "bridge", "type", "bridge"});
    in("switch", {"link", "set", "dev", "bridge", "up"});
    for (int host = 0; host < count_; ++host) add(host);
  }
  ~VirtualHosts() {
    for (int host = 0; host < count_; ++host) run({"ip", "netns", "delete", name(std::to_string(host))});
    run({"ip", "netns", "delete", name("switch")});
  }
  VirtualHosts(const VirtualHosts&) = delete;
  VirtualHosts& operator=(const VirtualHosts&) = delete;

  // Why there can be none; empty where there can.
  static std::string fault() {
    const std::string probe = "zero-probe-" + std::to_string(::getpid());
    const Result made = run({"ip", "netns", "add", probe});
    run({"ip", "netns", "delete", probe});
    return made.code == 0 ? "" : "ip netns add: " + (made.err.empty() ? "not installed" : made.err);
  }

  static std::string address(int host) { return "10.77.0." + std::to_string(host + 1); }

  std::vector<std::string> on(int host, const std::vector<std::string>& command) const {
    std::vector<std::string> words{"ip", "netns", "exec", name(std::to_string(host))};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

  // What follows `zero` to start so many ranks on each of them. `agent`: the file to write that runs a command on one,
  // as ssh does.
  std::vector<std::string> launch(const std::string& ranks, const std::string& agent) const {
    std::string names;
    std::ofstream file(agent);
    file << "#!/bin/sh\ncase $1 in\n";
    for (int host = 0; host < count_; ++host) {
      file << address(host) << ") host=" << name(std::to_string(host)) << ";;\n";
      names += (host ? "," : "") + address(host);
    }
    file << "esac\nshift\nexec ip netns exec $host env -i sh -c \"$*\"\n";
    file.close();
    std::filesystem::permissions(agent, std::filesystem::perms::owner_all);
    return {"launch", "--hosts", names, "--agent", agent, "-n", ranks};
  }

  // Nothing comes from that one any more, or gets there.
  void cut(int host) const { in("switch", {"link", "set", "dev", "port" + std::to_string(host), "down"}); }

  // By the interface.
  std::int64_t bytes_sent_by(int host) const {
    return std::stoll(run(on(host, {"cat", "/sys/class/net/net0/statistics/tx_bytes"})).out);
  }

 private:
  std::string name(const std::string& host) const { return "zero-" + std::to_string(::getpid()) + "-" + host; }

  static void ip(std::vector<std::string> words) {
    words.insert(words.begin(), "ip");
    const Result result = run(words);
    if (result.code != 0) throw std::runtime_error(result.err);
  }
  void in(const std::string& host, std::vector<std::string> words) const {
    words.insert(words.begin(), {"-n", name(host)});
    ip(words);
  }

  void add(int host) {
    const std::string number = std::to_string(host), port = "port" + number;
    ip({"netns", "add", name(number)});
    in(number, {"link", "add", "name", "net0", "type", "veth", "peer", "name", port, "netns", name("switch")});
    in("switch", {"link", "set", "dev", port, "master", "bridge"});
    in("switch", {"link", "set", "dev", port, "up"});
    in(number, {"address", "add", address(host) + "/24", "dev", "net0"});
    in(number, {"link", "set", "dev", "lo", "up"});
    in(number, {"link", "set", "dev", "net0", "up"});
  }

  int count_;
};

}  // namespace procs

#include "cli/options/host_list.h"

#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/number.h"
#include "base/text.h"
#include "cli/options/options.h"

namespace cli {
namespace {

constexpr const char* kFileForm = "a line is HOST or HOST slots=N";

int slots_of(const std::string& text, const std::string& where) {
  const auto slots = zero::read_number<int>(text, 1, kMostRanks);
  if (!slots.fault.empty()) throw UsageError(where + ": slots: " + slots.fault);
  return slots.value;
}

// Not an option of ssh's, and nothing that a terminal would show as something else.
std::string name_of(const std::string& text, const std::string& where) {
  const bool odd = text.empty() || text.front() == '-' || text.find_first_of(" \t") != std::string::npos ||
                   zero::escaped(text) != text;
  if (odd) throw UsageError(where + ": " + zero::in_quotes(text) + " is no host");
  return text;
}

// A colon before digits alone; an address of IPv6 has several colons.
ListedHost host_in_list(const std::string& word) {
  const std::size_t colon = word.find(':');
  const std::string where = "--hosts";
  if (colon == std::string::npos || colon != word.rfind(':')) return {name_of(word, where)};
  return {name_of(word.substr(0, colon), where), slots_of(word.substr(colon + 1), where)};
}

std::vector<ListedHost> hosts_in_list(const std::string& text) {
  std::vector<ListedHost> hosts;
  std::istringstream words(text + ",");
  for (std::string word; std::getline(words, word, ',');) hosts.push_back(host_in_list(word));
  return hosts;
}

std::vector<ListedHost> hosts_in_file(const std::string& path) {
  std::vector<ListedHost> hosts;
  std::ifstream lines(path);
  if (!lines) throw UsageError("--hosts: cannot read " + zero::in_quotes(path) + ": " + std::strerror(errno));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = zero::in_quotes(path) + ", line " + std::to_string(++number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, slots, more;
    if (!(words >> name)) continue;
    ListedHost host{name_of(name, where)};
    if (words >> slots) {
      if (!slots.starts_with("slots=") || words >> more) throw UsageError(where + ": " + kFileForm);
      host.slots = slots_of(slots.substr(6), where);
    }
    hosts.push_back(host);
  }
  if (hosts.empty()) throw UsageError("--hosts " + zero::in_quotes(path) + " lists no host");
  return hosts;
}

std::string own_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

std::string ListedHost::address() const {
  return name.substr(name.find('@') + 1);
}

bool ListedHost::is_this_one() const {
  return name == "localhost" || name == own_name();
}

bool ListedHost::is_loopback() const {
  if (!is_this_one()) return false;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, nullptr, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  const sockaddr* const address = found->ai_addr;
  if (address->sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

std::vector<ListedHost> read_hosts(const std::string& text) {
  std::error_code error;  // of a list that is too long for a file's name
  const bool file = text.find('/') != std::string::npos || std::filesystem::is_regular_file(text, error);
  std::vector<ListedHost> hosts = file ? hosts_in_file(text) : hosts_in_list(text);
  for (std::size_t i = 0; i < hosts.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (hosts[i].name == hosts[j].name)
        throw UsageError("--hosts lists " + zero::in_quotes(hosts[i].name) + " twice; more of its ranks: -n");
  return hosts;
}

int ranks_on_each(const std::vector<ListedHost>& hosts, int asked) {
  const auto fewest = std::ranges::min_element(hosts, {}, &ListedHost::slots);
  const auto most = std::ranges::max_element(hosts, {}, &ListedHost::slots);
  if (asked == 0 && fewest->slots == 0)
    throw UsageError("--ranks is required where --hosts does not say the slots of each");
  if (asked == 0 && fewest->slots != most->slots)
    throw UsageError("--hosts gives " + fewest->name + " " + std::to_string(fewest->slots) + " slots and " +
                     most->name + " " + std::to_string(most->slots) + "; each starts as many ranks: -n says how many");
  for (const ListedHost& host : hosts)
    if (host.slots > 0 && host.slots < asked)
      throw UsageError("--ranks " + std::to_string(asked) + ": --hosts gives " + host.name + " " +
                       std::to_string(host.slots) + " slots");
  return asked ? asked : fewest->slots;
}

}  // namespace cli

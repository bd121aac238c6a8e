// The hosts of a run, as people name them.
#pragma once

#include <string>
#include <vector>

namespace cli {

struct ListedHost {
  std::string name;  // as ssh takes it: USER@HOST, or HOST
  int slots = 0;     // ranks that it is said to have room for; 0: nothing is said

  // Without the user.
  std::string address() const;
  bool is_this_one() const;
  // Whether it is, and has its name for the loopback interface's address.
  bool is_loopback() const;
};

// "a,b:4" or a file with a host a line, "a" or "a slots=4", as mpirun reads it; # begins a comment. Throws UsageError
// naming the text, and the line, where it is none, and where a host is listed twice.
std::vector<ListedHost> read_hosts(const std::string& text);

// Ranks on each of them: those asked for, or where nobody asked (0) as many as each has slots. Throws UsageError where
// nobody said, where hosts differ, or have fewer slots.
int ranks_on_each(const std::vector<ListedHost>& hosts, int asked);

}  // namespace cli

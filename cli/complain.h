// What goes wrong, in words, on standard error.
#pragma once

#include <string>

namespace cli {

// "zero: rank 3: ", without the rank where a launcher gave none, and without what would control the terminal.
void complain(const std::string& text);

}  // namespace cli

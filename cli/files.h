// Results as files.
#pragma once

#include <string>

namespace cli {

// Throws zero::Error, naming the path, when `path` cannot be written; leaves nothing behind.
void check_writable(const std::string& path);
// All of it or nothing: written beside `path`, then renamed.
void write_file(const std::string& path, const std::string& text);
std::string read_file(const std::string& path);

}  // namespace cli

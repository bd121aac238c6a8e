// Results as files.
#pragma once

#include <string>

namespace cli {

// "-", to which a result goes instead of a file.
bool is_standard_output(const std::string& path);

// Throws zero::ConfigError, naming the path, when `path` cannot be written; leaves nothing behind.
void check_writable(const std::string& path);
// The same of files in a folder, which may have to be made.
void check_folder(const std::string& path);

// All of it or nothing: written beside `path`, then renamed. Where `path` is a symbolic link what it leads to is
// written; what is there already keeps its mode and, where that can be, its owner. Throws zero::Error likewise.
void write_file(const std::string& path, const std::string& text);
std::string read_file(const std::string& path);

// Where symbolic links lead, which may be to nothing. Throws zero::ConfigError where they go round in circles.
std::string target_of(const std::string& path);
// For temporary files. Throws zero::ConfigError where TMPDIR names none.
std::string temporary_folder();

}  // namespace cli

// Rows of the table of bad inputs: a command that cannot work, and what it must answer.
#pragma once

#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "procs/zero_program.h"

namespace procs::bad {

// What a row finds in its folder. `content`: of a link, where it leads; of a sparse file, its size.
struct File {
  enum class Kind { file, folder, pipe, socket, link, sparse };
  std::string name;
  std::string content = {};
  Kind kind = Kind::file;
};

struct Row {
  Words words;                    // behind `zero`
  std::vector<std::string> says;  // parts of the message
  int code = 2;
  std::vector<File> files = {};
  Variables variables = {};
  std::string shell = {};  // before `zero` is started: a limit, a redirection
  bool prints = false;     // it had begun, so that standard output is not empty
};

using Rows = std::vector<Row>;

inline Words split(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

inline Row row(const std::string& words, std::vector<std::string> says, std::vector<File> files = {}, int code = 2) {
  return {.words = split(words), .says = std::move(says), .code = code, .files = std::move(files)};
}

inline void add(Rows& rows, const Rows& more) {
  rows.insert(rows.end(), more.begin(), more.end());
}

inline std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

}  // namespace procs::bad

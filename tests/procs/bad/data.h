// Bad inputs: text and tokens.
#pragma once

#include "procs/bad/row.h"

namespace procs::bad {

inline Row data(const File& file, const std::string& says, const std::string& options = {}) {
  return row("train --model micro --data " + file.name + " " + options, {says}, {file});
}

// llm.c's header, of 16 bit tokens, and `tokens` of them.
inline std::string shard(std::uint32_t announced, std::size_t tokens) {
  const std::uint32_t header[256] = {20240520, 1, announced};
  return std::string(reinterpret_cast<const char*>(header), sizeof header) + std::string(2 * tokens, 'a');
}

inline Rows of_data() {
  using Kind = File::Kind;
  Rows rows{
      data({"d", ""}, "the data d is empty"),
      data({"d", "", Kind::folder}, "the data d is empty"),
      data({"d", "", Kind::pipe}, "the data d is a pipe"),
      data({"d.bin", "", Kind::pipe}, "the data d.bin is a pipe"),
      data({"d", "", Kind::socket}, "cannot read the data d"),
      data({"d", "/dev/zero", Kind::link}, "the data d is a device"),
      data({"d", "/dev/null", Kind::link}, "the data d is a device"),
      data({"d", "none", Kind::link}, "cannot read the data d: No such file"),
      data({"d", "d", Kind::link}, "cannot read the data d: Too many levels of symbolic links"),
      data({"d", "abc"}, "one sequence needs 129"),
      data({"d", std::string(1000, 'a')}, "an evaluation batch of 500 sequences", "--seq 8 --eval-every 1 --batch 500"),
      data({"d.bin", "abc"}, "does not divide into tokens of 2 bytes"),
      data({"d.u32", "abcde"}, "does not divide into tokens of 4 bytes"),
      data({"d", "abcde"}, "does not divide into tokens of 4 bytes", "--tokens 32"),
      data({"d.bin", shard(100, 50)}, "its header announces 1224 bytes"),
      data({"d.bin", shard(4294967295U, 50)}, "its header announces"),
      data({"d.bin", shard(0, 0)}, "the data d.bin is empty")};
  add(rows, {row("train --data none", {"cannot read the data none: No such file"}),
             row("train --data none/x", {"cannot read the data none/x"}),
             row("train --data text/x", {"cannot read the data text/x"}),
             row("compare --data none", {"cannot read the data none"}),
             row("train --ranks 2 --model micro --data none", {"cannot read the data none"}),
             row("compare --model micro --data /dev/zero", {"the data /dev/zero is a device"}),
             {.words = {"train", "--data", std::string(300, 'd')}, .says = {"File name too long", "ddd...ddd"}},
             {.words = {"train", "--data", "a\x1b[2J"}, .says = {R"(cannot read the data a\x1b[2J)"}}});
  Row outside = data({"d.bin", std::string(4000, '\xff')}, "holds token 65535", "--steps 1 --seq 16");
  outside.prints = true;
  rows.push_back(outside);
  return rows;
}

}  // namespace procs::bad

// Bad inputs: text and tokens, and runs that are too large for the host.
#pragma once

#include "procs/bad/row.h"

namespace procs::bad {

inline Row data(const File& file, const std::string& says, const std::string& options = {}) {
  return row("train --model micro --data " + file.name + " " + options, {says}, {file});
}

// llm.c's header, of 16 bit tokens, and `tokens` of them.
inline std::string shard(std::uint32_t announced, std::size_t tokens, std::uint32_t version = 1,
                         std::uint32_t magic = 20240520) {
  const std::uint32_t header[256] = {magic, version, announced};
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
  add(rows, {data({"d.bin", shard(100, 100, 99)}, "has a header of llm.c of version 99"),
             data({"d", shard(100, 100, 99)}, "of 16 bit tokens version 1 is known"),
             data({"d.bin", shard(100, 100).substr(0, 500)}, "ends within its header of llm.c"),
             data({"d.bin", shard(100, 100, 1, 20240522)}, "holds llm.c's questions for evaluation"),
             row("train --data d", {"is 16 bit tokens"},
                 {{"d", "", Kind::folder}, {"d/a.txt", "text"}, {"d/b.bin", shard(100, 100)}}),
             row("train --data d", {"is 32 bit tokens"},
                 {{"d", "", Kind::folder}, {"d/a.bin", shard(100, 100)}, {"d/b.u32", std::string(400, 'a')}}),
             row("train --model 70b --ranks 2", {"2 ranks of zero3 need ", "this fits: --model "}, {}, 1),
             row("compare --model 70b", {"4 ranks of ddp need ", " are available, by "}, {}, 1)});
  Row outside = data({"d.bin", std::string(4000, '\xff')}, "holds token 65535", "--steps 1 --seq 16");
  outside.prints = true;
  rows.push_back(outside);
  return rows;
}

}  // namespace procs::bad

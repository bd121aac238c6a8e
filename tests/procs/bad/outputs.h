// Bad inputs: where results should go.
#pragma once

#include "procs/bad/row.h"

namespace procs::bad {

// Commands that write a file, which is named last.
inline std::vector<std::string> all_writers() {
  return {"train --model micro --json",   "train --model micro --html",
          "train --model micro --trace",  "train --model micro --ranks 2 --json",
          "compare --model micro --json", "compare --model micro --html",
          "plan --model micro --json",    "plan --model micro --device-memory 1GB --fit --out"};
}

inline Rows of_places() {
  using Kind = File::Kind;
  Rows rows;
  for (const std::string& words : all_writers()) {
    add(rows, {row(words + " none/out", {"cannot write 'none/out': No such file or directory"}),
               row(words + " text/out", {"cannot write 'text/out': Not a directory"}),
               row(words + " folder", {"cannot write 'folder': Is a directory"}, {{"folder", "", Kind::folder}}),
               row(words + " loop", {"cannot follow 'loop'"}, {{"loop", "loop", Kind::link}}),
               row(words + " link", {"cannot write 'link'"}, {{"link", "none/out", Kind::link}}),
               row(words + " /proc/out.json", {"cannot write '/proc/out.json'"})});
    rows.push_back({.words = joined(split(words), {std::string(300, 'o')}), .says = {"File name too long"}});
  }
  add(rows,
      {row("train --model micro --tensorboard text", {"into the folder 'text': Not a directory"}),
       row("train --model micro --tensorboard text/x", {"into the folder 'text/x': Not a directory"}),
       row("train --model micro --tensorboard loop", {"'loop'"}, {{"loop", "loop", Kind::link}}),
       row("train --model micro --tensorboard -", {"--tensorboard: a folder cannot be standard output"}),
       row("bench profile --out text/x", {"cannot write 'text/x': Not a directory"}),
       row("bench profile --out folder", {"cannot write 'folder': Is a directory"}, {{"folder", "", Kind::folder}}),
       row("bench profile --out loop", {"'loop'"}, {{"loop", "loop", Kind::link}})});
  return rows;
}

inline Rows of_collisions() {
  using Kind = File::Kind;
  const File link{"link", "text", Kind::link}, folder{"folder", "", Kind::folder}, inside{"folder/text", "abc"};
  const std::string train = "train --model micro ";
  return {
      row(train + "--data text --json text", {"--data and --json are the same file, 'text'"}),
      row(train + "--data text --html ./text", {"--data and --html are the same file"}),
      row(train + "--data text --trace folder/../text", {"--data and --trace"}, {folder}),
      row(train + "--data text --json link", {"--data and --json are the same file"}, {link}),
      row(train + "--data link --json text", {"--data and --json are the same file"}, {link}),
      row(train + "--data folder --json folder/out", {"'folder/out' would lie in the folder of --data"},
          {folder, inside}),
      row(train + "--data folder --html ./folder/a", {"would lie in the folder of --data"}, {folder, inside}),
      row(train + "--data folder --tensorboard folder", {"--data and --tensorboard"}, {folder, inside}),
      row(train + "--data folder --tensorboard folder/events", {"would lie in the folder of --data"}, {folder, inside}),
      row(train + "--data . --json out.json", {"would lie in the folder of --data"}),
      row("train --model config.json --json config.json", {"--model and --json are the same file"}),
      row("train --plan plan.json --json plan.json", {"--plan and --json are the same file"}),
      row(train + "--profile profile.json --json profile.json", {"--profile and --json are the same file"}),
      row(train + "--json out --html out", {"--json and --html are the same file, 'out'"}),
      row(train + "--json out --html ./out", {"--json and --html are the same file"}),
      row(train + "--json out --trace folder/../out", {"--json and --trace are the same file"}, {folder}),
      row(train + "--json out --tensorboard out", {"--json and --tensorboard are the same file"}),
      row(train + "--json out --html link", {"--json and --html"}, {{"link", "out", Kind::link}}),
      row(train + "--json - --html -", {"--json and --html cannot both be standard output"}),
      row(train + "--trace - --json -", {"cannot both be standard output"}),
      row(train + "--ranks 2 --data text --json text", {"--data and --json are the same file"}),
      row("compare --model micro --data text --json text", {"--data and --json are the same file"}),
      row("compare --model micro --json out --html out", {"--json and --html are the same file"}),
      row("plan --model config.json --json config.json", {"--model and --json are the same file"}),
      row("plan --model config.json --device-memory 1GB --fit --out config.json", {"--model and --out"}),
      row("plan --model config.json --device-memory 1GB --fit --out ./config.json", {"--model and --out"}),
      row("plan --model micro --profile profile.json --json profile.json", {"--profile and --json"}),
      row("plan --model micro --ds-config ds.json --json ds.json", {"--ds-config and --json"}),
      row("plan --model micro --device-memory 1GB --fit --out x --json x", {"--json and --out are the same file"}),
      row("plan --model micro --device-memory 1GB --fit --out - --json -", {"cannot both be standard output"})};
}

// What cannot be known before it is written.
inline Rows of_full_disks() {
  const std::string plan = "plan --model micro", small = "train --model micro --data text --steps 1 --seq 8 --batch 1";
  const auto failing = [](const std::string& words, const std::string& says, const std::string& shell, bool prints) {
    return Row{.words = split(words), .says = {says}, .code = 1, .shell = shell, .prints = prints};
  };
  return {failing(plan + " --json /dev/full", "cannot write '/dev/full': No space left", "", true),
          failing(plan + " --device-memory 1GB --fit --out /dev/full", "cannot write '/dev/full'", "", true),
          failing(plan, "cannot write to standard output", "exec >/dev/full", false),
          failing(plan + " --json -", "cannot write to standard output", "exec >/dev/full", false),
          failing("--help", "cannot write to standard output", "exec >/dev/full", false),
          failing("train --help", "cannot write to standard output", "exec >/dev/full", false),
          failing("--version", "cannot write to standard output", "exec >/dev/full", false),
          failing(small + " --json /dev/full", "cannot write '/dev/full': No space left", "", true),
          failing(small + " --html /dev/full", "cannot write '/dev/full': No space left", "", true),
          failing(plan, "cannot write to standard output", "exec >&-", false)};
}

// Folders that are to be measured.
inline Rows of_disks() {
  const std::string none = "cannot keep a file in 'none': No such file or directory";
  return {
      row("bench disk", {"DIR is required"}),
      row("bench disk none", {none}),
      row("bench disk text", {"cannot keep a file in 'text': Not a directory"}, {{"text", "abc"}}),
      row("bench disk /proc --size 0", {"cannot keep a file in '/proc'", "give a folder that can be written"}),
      row("bench disk . --size 1000000TB", {"two files of 1000000000000000000 bytes do not fit into '.'", "--size"}),
      row("bench disk . --size 8EB", {"'8EB' is not a size"}),
      row("bench disk . --block 5KB", {"a block of 5000 bytes on disks", "a multiple of 4096"}),
      row("bench disk . --block 1GiB", {"at most 67108864"}),
      row("bench disk . --depth 0", {"--depth: '0' is below 1"}),
      row("bench disk . --queue thread", {"did you mean 'threads'?"}),
      row("bench disk . --json none/out", {"cannot write 'none/out': No such file or directory"}),
      {.words = split("bench disk . --size 8MiB"),
       .says = {"no room for 1052672 bytes in '.': File too large", "ulimit -f"},
       .code = 1,
       .shell = "ulimit -f 4"}};
}

inline Rows of_outputs() {
  Rows rows;
  for (const Rows& each : {of_places(), of_collisions(), of_full_disks(), of_disks()}) add(rows, each);
  return rows;
}

}  // namespace procs::bad

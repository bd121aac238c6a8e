// Bad inputs: environment variables and limits.
#pragma once

#include "procs/bad/row.h"

namespace procs::bad {

inline Row with_variables(Variables variables, std::vector<std::string> says, const std::string& words = {}) {
  return {.words = split("train --model micro --data text --steps 1 --seq 8 " + words),
          .says = std::move(says),
          .variables = std::move(variables)};
}

// Of torchrun, with one variable that is wrong.
inline Row rank_with(const std::string& name, const std::string& value, const std::string& says = {}) {
  return with_variables(with(rank_variables(0, 2, "1"), {{name, value}}), {says.empty() ? name + "=" + value : says});
}

// Of a launcher that started one rank.
inline Row alone_with(const std::string& name, const std::string& value) {
  return with_variables(with(rank_variables(0, 1, "1"), {{name, value}}), {name + "=" + value});
}

inline Rows of_launchers() {
  const Variables alone = rank_variables(0, 1, "1");
  Rows rows{
      rank_with("RANK", "2"),
      rank_with("RANK", "-1"),
      rank_with("RANK", "x"),
      rank_with("RANK", "01"),
      rank_with("RANK", "99999999999"),
      rank_with("RANK", "\x1b[2J", R"(RANK=\x1b[2J)"),
      rank_with("RANK", std::string(10'000, 'r'), "rrr...rrr"),
      rank_with("RANK", "", "RANK is not set"),
      rank_with("WORLD_SIZE", "two"),
      rank_with("WORLD_SIZE", "0"),
      rank_with("WORLD_SIZE", "-2"),
      rank_with("WORLD_SIZE", "2.5"),
      rank_with("WORLD_SIZE", "99999999999"),
      rank_with("LOCAL_RANK", "7"),
      rank_with("LOCAL_RANK", "one"),
      rank_with("LOCAL_WORLD_SIZE", "0"),
      rank_with("LOCAL_WORLD_SIZE", "3"),
      rank_with("MASTER_PORT", "0"),
      rank_with("MASTER_PORT", "99999"),
      rank_with("MASTER_PORT", "http"),
      rank_with("MASTER_PORT", "", "MASTER_PORT is not set"),
      rank_with("MASTER_ADDR", "", "MASTER_ADDR is not set"),
      with_variables({{"WORLD_SIZE", "2"}}, {"RANK is not set"}),
      with_variables({{"RANK", "0"}}, {"WORLD_SIZE is not set"}),
      with_variables(alone, {"--ranks 3 contradicts the launcher, which started 1"}, "--ranks 3"),
      with_variables({{"OMPI_COMM_WORLD_SIZE", "2"}}, {"OMPI_COMM_WORLD_RANK is not set"}),
      with_variables({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "5"}}, {"OMPI_COMM_WORLD_RANK=5"}),
      with_variables({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "x"}}, {"SLURM_NTASKS=x"}),
      with_variables({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "0"}}, {"SLURM_NTASKS=0"}),
      with_variables(
          {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "0"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x"}},
          {"\"2(x\""})};
  for (const char* text : {"soon", "0", "-1", "inf", "nan", "1e30", "5s", "010"})
    rows.push_back(alone_with("ZERO_TIMEOUT", text));
  for (const auto& [name, text] : {std::pair("ZERO_CHECK", "yes"),
                                   {"ZERO_ARENA", "2"},
                                   {"ZERO_TRANSPORT", "udp"},
                                   {"ZERO_RANKS_PER_HOST", "x"},
                                   {"ZERO_RANKS_PER_HOST", "-1"},
                                   {"ZERO_RANKS_PER_HOST", "99999999999"}})
    rows.push_back(alone_with(name, text));
  return rows;
}

inline Rows of_folders() {
  const File broken{"cache/zero/profile.json", "{"};
  return {{.words = split("plan --model micro"),
           .says = {"cache/zero/profile.json is not a JSON object", "line 1, column 2"},
           .files = {broken},
           .variables = {{"XDG_CACHE_HOME", "cache"}}},
          {.words = split("compare --model micro --data text --seq 8 --steps 1"),
           .says = {"TMPDIR"},
           .variables = {{"TMPDIR", "none"}}},
          {.words = split("bench profile"), .says = {"text/zero"}, .variables = {{"XDG_CACHE_HOME", "text"}}}};
}

inline Rows of_environment() {
  Rows rows = of_launchers();
  add(rows, of_folders());
  return rows;
}

inline Rows of_limits() {
  const auto limited = [](const std::string& shell, const std::string& words, const std::string& says) {
    return Row{.words = split(words), .says = {says}, .code = 1, .shell = shell, .prints = true};
  };
  const std::string train = "train --model micro --data text --steps 1 --seq 8";
  return {limited("ulimit -v 150000", train, "cannot load what trains"),
          limited("ulimit -v 150000", "compare --model micro", "cannot load what trains"),
          limited("ulimit -v 150000", "bench profile --out x", "cannot load what trains")};
}

}  // namespace procs::bad

// Bad inputs: options, their values and what contradicts what.
#pragma once

#include "procs/bad/row.h"

namespace procs::bad {

inline Row value(const std::string& command, const std::string& option, const std::string& value,
                 const std::string& says) {
  return {.words = joined(split(command), {option, value}), .says = {option + ": ", says}};
}

// Integers that are at least 0 or 1.
inline Rows of_integers() {
  struct Command {
    const char* words;
    std::vector<std::string> options;
  };
  const Command commands[] = {{"train --model micro",
                               {"--ranks", "--steps", "--seq", "--batch", "--accumulate", "--warmup", "--seed",
                                "--threads", "--eval-every", "--loss-pieces"}},
                              {"compare --model micro", {"--ranks", "--steps", "--accumulate"}},
                              {"plan --model micro", {"--ranks", "--hosts", "--seq", "--batch", "--accumulate"}},
                              {"bench profile", {"--ranks", "--threads"}},
                              {"checkpoint prune .", {"--keep", "--keep-every"}},
                              {"launch", {"--ranks"}}};
  Rows rows;
  for (const Command& command : commands)
    for (const std::string& option : command.options) {
      rows.push_back(value(command.words, option, "18446744073709551616", "'18446744073709551616' is above "));
      rows.push_back(value(command.words, option, "-1", "'-1' is below "));
      rows.push_back(value(command.words, option, "010", "'010' begins with a zero"));
      rows.push_back(value(command.words, option, "1.5", "'1.5' is not an integer"));
    }
  for (const char* text : {"x", " 7", "7 ", "+7", "0x10", "1e3", "7,000", "--lr", "٣"})
    rows.push_back(value("train --model micro", "--steps", text, "is not an integer"));
  for (const char* option : {"--steps", "--ranks", "--seq", "--batch", "--accumulate", "--threads", "--loss-pieces"})
    rows.push_back(value("train --model micro", option, "0", "'0' is below 1"));
  add(rows, {value("train", "--threads", "100000", "'100000' is above 4096"),
             value("bench profile", "--threads", "4097", "'4097' is above 4096"),
             value("train", "--ranks", "1048577", "'1048577' is above 1048576"),
             value("train", "--accumulate", "2147483648", "'2147483648' is above 2147483647"),
             value("plan", "--loss-pieces", "4097", "'4097' is above 4096"),
             value("train", "--steps", "9223372036854775808", "'9223372036854775808' is above 9223372036854775807")});
  return rows;
}

inline Rows of_reals() {
  Rows rows;
  for (const char* option : {"--lr", "--clip", "--loss-scale"})
    for (const auto& [text, says] : {std::pair("inf", "'inf' is not a finite number"),
                                     {"nan", "'nan' is not a finite number"},
                                     {"-0.5", "'-0.5' is below 0"},
                                     {"x", "'x' is not a number"},
                                     {"1e999", "'1e999' is beyond the numbers of 64 bits"}})
      rows.push_back(value("train --model micro", option, text, says));
  add(rows, {value("launch -n 1", "--grace", "nan", "'nan' is not a finite number"),
             value("launch -n 1", "--grace", "1e7", "'1e7' is above 1e+06"),
             value("launch -n 1", "--grace", "-1", "'-1' is below 0"),
             value("bench profile", "--network", "0", "'0' is no speed of a network"),
             value("bench profile", "--network", "inf", "write 100Gbit or 500Mbit"),
             value("bench profile", "--network", "fast", "'fast' is no speed of a network")});
  return rows;
}

inline Rows of_sizes() {
  Rows rows;
  for (const char* text : {"-1", "many", "5XB", "1e30", "0x10", "18446744073709551616", "500 M B", "nan"})
    for (const auto& [command, option] : {std::pair("train --model micro", "--resident-budget"),
                                          {"plan --model micro", "--device-memory"},
                                          {"plan", "--parameters"}})
      rows.push_back(value(command, option, text, "is not a size"));
  add(rows, {value("plan --model micro", "--device-memory", "80", "'80' has no unit, so it is 80 bytes (write 80GB"),
             value("plan --model micro", "--device-memory", "0", "is not a size"),
             value("train", "--resident-budget", "500", "'500' has no unit"),
             value("plan", "--parameters", "0", "is not a size")});
  return rows;
}

inline Rows of_choices() {
  struct Choice {
    const char* command;
    const char* option;
    const char* near;
    const char* meant;
  };
  const Choice choices[] = {{"train", "--precision", "bf61", "bf16"},
                            {"train", "--optimizer", "adamv", "adamw"},
                            {"train", "--schedule", "cosin", "cosine"},
                            {"train", "--reduce-in", "bf61", "bf16"},
                            {"train", "--gather-in", "nativ", "native"},
                            {"train", "--fp8-scaling", "delay", "delayed"},
                            {"train", "--plan", "zer3", "zero3"},
                            {"train", "--model", "tin", "tiny"},
                            {"compare", "--plans", "zer3", "zero3"},
                            {"compare", "--optimizers", "lions", "lion"},
                            {"compare --optimizers sgd", "--precisions", "fp23", "fp32"},
                            {"plan --model 7b", "--plans", "zeor2", "zero2"},
                            {"plan --model 7b", "--memory", "comon", "common"},
                            {"plan", "--model", "70bb", "70b"},
                            {"plan --model 7b", "--precision", "bf16_sr", "bf16-sr"},
                            {"plan --model 7b", "--optimizer", "adamw8bit", "adamw-8bit"},
                            {"bench profile", "--precisions", "bf61", "bf16"}};
  Rows rows;
  for (const Choice& each : choices) {
    rows.push_back(value(each.command, each.option, each.near, std::string("did you mean '") + each.meant + "'?"));
    rows.push_back(value(each.command, each.option, "", each.option));
  }
  add(rows, {value("train --data text", "--tokens", "8", "'8' is not one of 16, 32"),
             value("train --data text", "--tokens", "020", "'020' is not one of 16, 32"),
             value("train", "--precision", std::string(100'000, 'x'), "xxx...xxx"),
             value("train", "--precision", "\x1b[31mfp32\n", R"('\x1b[31mfp32\n' is not one of)"),
             value("train", "--precision", "\xff\xfe", R"('\xff\xfe' is not one of)"),
             value("train", "--model", std::string(100'000, 'm'), "mmm...mmm"),
             value("train", "--plan", "a\nb\x07", R"('a\nb\x07' is neither)")});
  return rows;
}

// Forms, and devices that no machine has.
inline Rows of_devices() {
  Rows rows;
  for (const char* command : {"train --model micro", "compare --model micro", "eval --model . --data text"})
    for (const auto& [text, says] : {std::pair("", "'' is not the name of a device: write cpu, cuda or cuda:1"),
                                     {"CUDA", "'CUDA' is not the name of a device"},
                                     {":1", "':1' is not the name of a device"},
                                     {"1", "'1' is not the name of a device"},
                                     {"cuda,cpu", "'cuda,cpu' is not the name of a device"},
                                     {"cuda:", "'cuda:': the index '' is not an integer"},
                                     {"cuda:x", "'cuda:x': the index 'x' is not an integer"},
                                     {"cuda:0:1", "the index '0:1' is not an integer"},
                                     {"cuda:+1", "the index '+1' is not an integer"},
                                     {"cuda:-1", "the index '-1' is below 0"},
                                     {"cuda:01", "the index '01' begins with a zero"},
                                     {"cuda:128", "the index '128' is above 127"}})
      rows.push_back(value(command, "--device", text, says));
  for (const char* command : {"train --model micro", "compare --model micro"}) {
    rows.push_back(value(command, "--device", "gpu", "LibTorch knows no kind of device 'gpu'"));
    rows.push_back(value(command, "--device", "cuda:127", "this host has the CPU"));
    rows.push_back(value(command, "--device", "cpu:1", "there is no device 'cpu:1'"));
  }
  return rows;
}

inline Rows of_tiers() {
  return {
      value("train", "--offload", "optimizer", "'optimizer' says no tier (write STATE=TIER"),
      row("train --offload moments=disk --disk .", {"unknown state 'moments'", "optimizer"}),
      row("train --offload optimizer=nvme", {"unknown tier 'nvme'", "disk"}),
      value("train", "--offload", "optimizer=disk:2", "'optimizer=disk:2': '2' is above 1"),
      row("train --offload optimizer=device:0.5", {"a share of 0.5 of optimizer on tier device"}),
      row("train --offload optimizer=disk", {"--offload optimizer=disk needs folders: give --disk DIR"}),
      row("train --offload optimizer=disk:0.5,optimizer=device --disk .", {"the optimizer has two tiers"}),
      row("train --offload optimizer=disk --disk .,./", {"--disk names the folder './' twice"}),
      row("train --disk .", {"--disk: no state is kept on disk: give --offload"}),
      row("compare --disk .", {"--disk: no state is kept on disk: give --offload"}),
      row("train --device cpu --offload optimizer=host",
          {"--offload optimizer=host", "trained on the CPU", "use disk"}),
      row("train --plan zero1 -n 2 --offload parameter=disk --disk .",
          {"parameter on tier disk needs ranks that update"}),
      row("train --plan ddp -n 2 --offload gradient=disk --disk .", {"gradient on tier disk needs gradients sharded"}),
      row("plan --model 7b --offload optimizer", {"'optimizer' says no tier"})};
}

inline Rows of_words() {
  return {row("", {"train, compare, eval, plan, bench, checkpoint or launch"}),
          row("tran", {"unknown command 'tran'; did you mean 'train'?", "zero --help"}),
          row("compair", {"did you mean 'compare'?"}),
          row("frobnicate", {"unknown command 'frobnicate'"}),
          row("bench", {"zero bench --help"}),
          row("checkpoint", {"zero checkpoint --help"}),
          row("checkpoint exprot x", {"did you mean 'export'?"}),
          row("checkpoint export x", {"--to", "zero checkpoint export --help"}),
          row("eval --data text", {"--model", "zero eval --help"}),
          row("bench profil", {"did you mean 'profile'?"}),
          row("--step 3", {"unknown option '--step'"}),
          row("train --step 3", {"unknown option '--step'; did you mean '--steps'?", "zero train --help"}),
          row("train --step=3", {"'--step'; did you mean '--steps'?"}),
          row("train --resident_budget 1G", {"did you mean '--resident-budget'?"}),
          row("train --frobnicate", {"unknown option '--frobnicate'"}),
          row("train -x", {"unknown option '-x'"}),
          row("train micro", {"unexpected argument 'micro'"}),
          row("compare --plan zero1", {"did you mean '--plans'?"}),
          row("plan --device_memory 80GB", {"did you mean '--device-memory'?"}),
          row("plan --modle 7b", {"did you mean '--model'?"}),
          row("bench profile --netwrok 3", {"did you mean '--network'?"}),
          row("launch -n 1 --no-prefixes true", {"did you mean '--no-prefix'?"}),
          {.words = {"train", "--\x1b[2J"}, .says = {R"('--\x1b[2J')"}},
          {.words = {"train", "--" + std::string(100'000, 'o')}, .says = {"ooo...ooo"}},
          {.words = {std::string(1'000, 'c')}, .says = {"ccc...ccc"}},
          {.words = {"train", ""}, .says = {"unexpected argument ''"}},
          row("train --steps", {"--steps"}),
          row("train --steps 1 --steps 2", {"--steps"}),
          row("train --model", {"--model"}),
          row("train --timeline=perhaps", {"--timeline"}),
          row("checkpoint", {"zero checkpoint --help"}),
          row("checkpoint lsit .", {"unknown command 'lsit'; did you mean 'list'?"}),
          row("checkpoint show", {"CKPT is required", "zero checkpoint show --help"}),
          row("checkpoint show none", {"there is no 'none'", "give a checkpoint's folder"}),
          row("checkpoint list .", {"'.' is neither a checkpoint nor a folder of checkpoints"}),
          row("checkpoint verify config.json", {"'config.json' failed: Not a directory"}),
          row("checkpoint prune . --keep 0", {"--keep: '0' is below 1"}),
          row("launch true", {"--ranks"}),
          row("launch -n 2", {"no program"}),
          row("launch --hosts a,b true", {"--ranks is required where --hosts does not say the slots of each"}),
          row("launch --hosts a:2,b:3 true", {"--hosts gives a 2 slots and b 3", "-n says how many"}),
          row("launch -n 3 --hosts a:4,b:2 true", {"--ranks 3: --hosts gives b 2 slots"}),
          row("launch -n 1 --hosts a,,b true", {"--hosts: '' is no host"}),
          row("launch -n 1 --hosts a,-b true", {"--hosts: '-b' is no host"}),
          row("launch -n 1 --hosts a:0 true", {"--hosts: slots: '0' is below 1"}),
          row("launch -n 1 --hosts a,b,a true", {"--hosts lists 'a' twice"}),
          row("launch -n 1 --hosts ./none true", {"cannot read './none': No such file"}),
          row("launch -n 1 --hosts a --nodes 2 true", {"--hosts and --nodes"}),
          row("launch -n 1 --hosts a --master [::1 true", {"--master '[::1' is not ADDRESS or ADDRESS:PORT"}),
          row("launch -n 1 --hosts localhost,a true", {"--hosts begins with localhost", "--master says one"}),
          {.words = {"launch", "-n", "1", "--hosts", "", "true"}, .says = {"--hosts: '' is no host"}},
          row("launch -n 1 --export A true", {"--export requires --hosts"}),
          row("launch -n 1 --hosts a --node-rank 1 true", {"--hosts and --nodes"}),
          row("launch -n 1 --hosts " + std::string(300, 'a') + ",-b true", {"--hosts: '-b' is no host"}),
          row("launch -n 2 --nodes 2 true", {"--nodes 2 needs --master"}),
          row("launch -n 2 --nodes 2 --node-rank 2 --master a true", {"--node-rank 2: of 2 nodes the last is 1"}),
          row("launch -n 2 --nodes 2 --master [::1 true", {"--master '[::1' is not ADDRESS or ADDRESS:PORT"}),
          row("launch -n 2 --nodes 2 --master a[b]:1 true", {"--master 'a[b]:1' is not ADDRESS or ADDRESS:PORT"}),
          row("launch -n 2 --nodes 2 --master a:x true", {"--master 'a:x' is not ADDRESS or ADDRESS:PORT"}),
          row("launch -n 2 --nodes 2 --master a --restarts 1 true", {"--restarts is of one node"})};
}

inline Rows of_contradictions() {
  return {row("compare --optimizers all --optimizer sgd", {"--optimizer"}),
          row("compare --precisions fp32,bf16", {"--precisions", "--optimizers"}),
          row("compare --optimizers sgd --precisions all --precision bf16", {"--precision"}),
          row("plan", {"give --model or --parameters"}),
          row("plan --model 7b --parameters 7e9", {"--parameters"}),
          row("plan --model 7b --fit", {"--device-memory"}),
          row("plan --model 7b --out x.json", {"--fit"}),
          row("plan --model 7b --ranks 8 --hosts 3", {"8 ranks do not divide among 3 hosts"}),
          row("plan --model 7b --ranks 8 --shard-ranks 3", {"--shard-ranks: 8 ranks do not divide into groups of 3"}),
          row("compare --model micro --shard-ranks 3", {"--shard-ranks: 4 ranks do not divide into groups of 3"}),
          row("train --model micro --shard-ranks 2", {"--shard-ranks: 1 rank does not divide into groups of 2"}),
          row("train --model micro --tensor 2", {"--tensor: 1 rank does not divide into tensor axes of 2"}),
          row("compare --model micro --ranks 6 --tensor 2 --shard-ranks 2",
              {"--shard-ranks: 3 ranks do not divide into groups of 2"}),
          row("plan --model micro --ranks 6 --tensor 3",
              {"3 ranks of the tensor axis do not divide num_attention_heads 4"}),
          row("plan --model micro --ranks 8 --hosts 4 --tensor 4",
              {"2 ranks of a host do not divide among tensor axes of 4"}),
          row("plan --model 7b --memory common --gather-in fp8", {"--memory common contradicts --gather-in"}),
          row("train --model micro --loss-scale 3", {"--loss-scale: initial must be a power of two, not 3"}),
          row("plan --model 7b --batch 9223372036854775807", {"batch"}),
          row("plan --model 7b --accumulate 2147483647", {"micro-batches"}),
          row("plan --parameters 1e18", {"parameters"}),
          row("train --model micro --plan ddp --gather-in fp8", {"'ddp' cannot run on 1 rank: "}),
          row("compare --model micro --gather-in fp8", {"cannot run on 4 ranks"}),
          row("train --model micro --tokens 16", {"--tokens", "--data"}),
          row("train --seq 1000000", {"--seq: 1000000 tokens are more than the 2048 positions of model 'tiny'"}),
          row("train --model micro --steps 9223372036854775807 --accumulate 2", {"on 1 rank are more tokens"}),
          row("train --model micro --ranks 2 --steps 2305843009213693952", {"on 2 ranks are more tokens"}),
          row("train --plan plan.json --precision fp32", {"--precision fp32 contradicts the plan file plan.json"}),
          row("train --plan plan.json --seq 7", {"--seq 7 contradicts the plan file"}),
          row("train --model micro --recompute all", {"--recompute", "all", "none, layers, selective"}),
          row("train --model micro --profile profile.json --precision fp16", {"does not say how fast fp16"})};
}

inline Rows of_options() {
  Rows rows;
  for (const Rows& each :
       {of_integers(), of_reals(), of_sizes(), of_choices(), of_devices(), of_tiers(), of_words(), of_contradictions()})
    add(rows, each);
  return rows;
}

}  // namespace procs::bad

// Bad inputs: settings in JSON, whatever command reads them.
#pragma once

#include "procs/bad/row.h"

namespace procs::bad {

// A file that some command reads, as `it`.
struct Document {
  std::string words;
  std::string key;  // one that it may have
};

inline std::vector<Document> all_documents() {
  return {{"plan --model ./it", "hidden_size"},
          {"train --model ./it", "hidden_size"},
          {"train --plan ./it", "plan"},
          {"plan --model micro --profile ./it", "name"},
          {"plan --model micro --ds-config ./it", "train_batch_size"}};
}

struct Fault {
  File file;
  std::string says;
};

inline std::vector<Fault> faults_of(const std::string& key) {
  using Kind = File::Kind;
  const std::string name = '"' + key + '"';
  return {{{"it", ""}, "not a JSON object: unexpected end of input"},
          {{"it", " \n\t"}, "line 2, column 2"},
          {{"it", "[1]"}, "not a JSON object"},
          {{"it", "null"}, "not a JSON object"},
          {{"it", "{" + name + ": 1"}, "unexpected end of input; expected '}'"},
          {{"it", "{\n " + name + ": 1,\n}"}, "line 3, column 1"},
          {{"it", "{} {}"}, "line 1, column 4"},
          {{"it", "{" + name + ": 1,\n" + name + ": 2}"}, name + " is given twice, line 2"},
          {{"it", "{" + name + ": 1e999}"}, "number overflow"},
          {{"it", "{" + name + ": \"\xff\"}"}, "not a JSON object"},
          {{"it", "\xff\xfe{\0}"}, "line 1, column 1"},
          {{"it", repeated("[", 100'000)}, "nested deeper than 64 levels"},
          {{"it", repeated(R"({"a":)", 100'000)}, "nested deeper than 64 levels"},
          {{"it", std::string("\x7f"
                              "ELF\0\1\2",
                              7)},
           "line 1, column 1"},
          {{"it", "{\"\x1b[2J\": 1}"}, "not a JSON object"},
          {{"it", "", Kind::folder}, "it is a folder, not a file"},
          {{"it", "", Kind::pipe}, "it is a pipe, not a file"},
          {{"it", "", Kind::socket}, "cannot read './it'"},
          {{"it", "/dev/zero", Kind::link}, "it is a device, not a file"},
          {{"it", "/proc/self/mem", Kind::link}, "cannot read './it'"},
          {{"it", "100000000", Kind::sparse}, "larger than 64 MiB"},
          {{"it", "none", Kind::link}, "./it"},
          {{"it", "it", Kind::link}, "./it"}};
}

inline Rows of_faulty_documents() {
  Rows rows;
  for (const Document& document : all_documents())
    for (const Fault& fault : faults_of(document.key)) rows.push_back(row(document.words, {fault.says}, {fault.file}));
  return rows;
}

inline Row config(const std::string& fields, const std::string& says) {
  return row("plan --model config.json", {"config.json", says}, {{"config.json", "{" + fields + "}"}});
}

// A config.json that is right but for `field`.
inline Row but(const std::string& key, const std::string& value, const std::string& says) {
  nlohmann::ordered_json fields{{"hidden_size", 64},
                                {"intermediate_size", 128},
                                {"num_hidden_layers", 2},
                                {"num_attention_heads", 4},
                                {"vocab_size", 256}};
  fields[key] = 0;
  std::string text = fields.dump();
  const std::string mark = '"' + key + "\":0";
  return row("plan --model config.json", {"config.json", says},
             {{"config.json", text.replace(text.find(mark) + mark.size() - 1, 1, value)}});
}

inline Rows of_models() {
  return {config("", R"("hidden_size" is missing)"),
          but("hidden_size", "9223372036854775808", "too large: at most 9223372036854775807"),
          but("hidden_size", "18446744073709551616", "too large"),
          but("hidden_size", "-1", "hidden_size is -1, not positive"),
          but("hidden_size", "0", "hidden_size is 0, not positive"),
          but("hidden_size", "64.5", "64.5, not an integer"),
          but("hidden_size", "\"64\"", "not an integer"),
          but("hidden_size", "[64]", "not an integer"),
          but("hidden_size", "63", "does not divide by num_attention_heads 4"),
          but("hidden_size", "9223372036854775807", "config.json"),
          but("num_hidden_layers", "1000000", "more than 100000 layers"),
          but("vocab_size", "1000000000000000", "1e15 parameters"),
          but("num_key_value_heads", "3", "does not divide by num_key_value_heads 3"),
          but("rms_norm_eps", "\"x\"", "not a number"),
          but("rope_theta", "-1", "not positive"),
          but("tie_word_embeddings", "1", "not true or false"),
          but("model_type", "\"gpt2\"", "which is not supported"),
          but("hidden_act", "\"" + std::string(100'000, 'g') + "\"", "ggg...ggg"),
          but("hidden_act", R"("\u001b[2J")", "which is not supported"),
          but("rope_scaling", "[]", "config.json"),
          row("plan --model none.json", {"cannot read 'none.json': No such file"}),
          row("plan --model none/config.json", {"none/config.json"}),
          row("plan --model text/config.json", {"cannot read 'text/config.json': Not a directory"}),
          row("train --model none.json", {"cannot read 'none.json'"}),
          row("compare --model /dev/null", {"'/dev/null': it is a device"}),
          {.words = {"plan", "--model", "./" + std::string(300, 'n')}, .says = {"File name too long", "nnn...nnn"}},
          {.words = {"plan", "--model", "./a\nb"}, .says = {R"('./a\nb')"}}};
}

inline Row plan_file(const std::string& fields, const std::string& says) {
  return row("train --plan p.json", {says}, {{"p.json", "{" + fields + "}"}});
}

inline Rows of_plan_files() {
  return {plan_file("", R"(p.json: "plan" is missing)"),
          plan_file(R"("plan": "zer3")", "did you mean 'zero3'?"),
          plan_file(R"("plan": 3)", R"("plan" is 3, not a string)"),
          plan_file(R"("plan": "zero3", "rank": 2)", R"("rank" is not known; did you mean 'ranks'?)"),
          plan_file(R"("plan": "zero3", "ranks": 0)", R"("ranks" is 0, below 1)"),
          plan_file(R"("plan": "zero3", "ranks": 4294967297)", "too large: at most 2147483647"),
          plan_file(R"("plan": "zero3", "batch": 1.5)", R"("batch" is 1.5, not an integer)"),
          plan_file(R"("plan": "zero3", "resident_budget": -1)", R"("resident_budget" is -1, below 0)"),
          plan_file(R"("plan": "zero3", "reproducible": "yes")", "not true or false"),
          plan_file(R"("plan": "zero3", "precision": "fp4")", "use one of fp32"),
          plan_file(R"("plan": "zero3", "model": "micro", "optimizer": "adamz")", "there is no 'adamz'"),
          plan_file(R"("plan": "zero3", "model": "none.json")", "none.json"),
          plan_file(R"("plan": "zero3")", "names no model"),
          plan_file("\"" + std::string(100'000, 'k') + "\": 1", "kkk...kkk"),
          row("train --plan none.json", {"'none.json' is neither a preset (ddp, zero1, zero2, zero3, hybrid, "
                                         "hybrid-zero2, zeropp, sdp4bit) nor a file"})};
}

inline Row profile(const std::string& fields, const std::string& says) {
  return row("plan --model micro --profile p.json", {"p.json", says}, {{"p.json", "{" + fields + "}"}});
}

inline Rows of_profiles() {
  return {profile("", R"("name" is missing)"),
          profile(R"("name": 1)", R"("name" is 1, not a string)"),
          profile(R"("name": "x", "copy_bandwidth": 0)", R"("copy_bandwidth" is 0, below)"),
          profile(R"("name": "x", "copy_bandwidth": -1e9)", "below"),
          profile(R"("name": "x", "copy_bandwith": 1)", "did you mean 'copy_bandwidth'?"),
          profile(R"("name": "x", "overlap": 2)", R"("overlap" is 2, too large)"),
          profile(R"("name": "x", "bf16": 3)", R"("bf16" is not a JSON object)"),
          profile(R"("name": "x", "bf16": {"flops": 3})", R"("flops" is not known)"),
          row("plan --model micro --profile none.json", {"cannot read 'none.json'", "a100, h100 or h200"}),
          row("train --model micro --profile none.json", {"cannot read 'none.json'"}),
          row("compare --model micro --profile h10", {"cannot read 'h10'"})};
}

inline Row deepspeed(const std::string& fields, const std::string& says) {
  return row("plan --model micro --ds-config d.json", {"d.json", says}, {{"d.json", "{" + fields + "}"}});
}

inline Rows of_deepspeed() {
  return {deepspeed(R"("zero_optimization": {"stage": 1, "stage": 3})", R"("stage" is given twice, line 1)"),
          deepspeed(R"("zero_optimization": {"stage": 4})", "a stage from 0 to 3"),
          deepspeed(R"("zero_optimization": {"stag": 3})", "did you mean 'zero_optimization.stage'?"),
          deepspeed(R"("zero_optimization": 3)", "zero_optimization"),
          deepspeed(R"("train_batch_size": 0)", "train_batch_size is 0"),
          deepspeed(R"("train_batch_size": 18446744073709551616)", "not a positive integer"),
          deepspeed(R"("train_batch_size": "four")", "train_batch_size is \"four\""),
          deepspeed(R"("train_micro_batch_size_per_gpu": -1)", "not a positive integer"),
          deepspeed(R"("fp16": {"enabled": true}, "bf16": {"enabled": true})", "choose one"),
          deepspeed(R"("optimizer": {"type": "adamz"})", "optimizer.type \"adamz\" is not supported"),
          deepspeed(R"("gradient_clipping": -1)", "a number of at least 0"),
          deepspeed(R"("frobnicate": 1)", "frobnicate: this key is not known"),
          deepspeed("\"" + std::string(100'000, 'k') + "\": 1", "kkk...kkk"),
          deepspeed("\"communication_data_type\": \"" + std::string(100'000, 'd') + "\"", "ddd...ddd"),
          row("plan --model micro --ds-config none.json", {"cannot read 'none.json'"})};
}

inline Rows of_documents() {
  Rows rows;
  for (const Rows& each : {of_faulty_documents(), of_models(), of_plan_files(), of_profiles(), of_deepspeed()})
    add(rows, each);
  return rows;
}

}  // namespace procs::bad

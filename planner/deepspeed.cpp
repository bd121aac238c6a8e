#include "planner/deepspeed.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/text.h"
#include "models/json.h"
#include "planner/deepspeed_keys.h"
#include "zero/error.h"
#include "zero/plan.h"

namespace planner {
namespace {

using models::Json;

constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kSteps = "gradient_accumulation_steps";
constexpr const char* kTotal = "train_batch_size";

// A feature that is switched off says nothing else.
bool switched_off(const Json& object) {
  if (!object.is_object()) return object.is_null();
  const auto is = [&](const char* key, const Json& value) { return object.contains(key) && object[key] == value; };
  return is("enabled", false) || is("device", "none");
}

bool among(std::string_view values, const std::string& value) {
  const std::string list = " " + std::string(values) + " ";
  return list.find(" " + value + " ") != std::string::npos;
}

struct NamedOptimizer {
  const char* deepspeed;
  const char* ours;
};
constexpr std::array<NamedOptimizer, 10> kOptimizers{{{"adam", "adamw"},
                                                      {"adamw", "adamw"},
                                                      {"torch_adam", "adam"},
                                                      {"lion", "lion"},
                                                      {"lamb", "lamb"},
                                                      {"muon", "muon"},
                                                      {"adagrad", "adagrad"},
                                                      {"rmsprop", "rmsprop"},
                                                      {"adafactor", "adafactor"},
                                                      {"sgd", "sgd"}}};

class Reader {
 public:
  Reader(const Json& json, std::string source, int ranks, const Known& known)
      : source_(std::move(source)), ranks_(ranks), known_(known) {
    flatten(json, "");
  }

  DeepSpeed read() && {
    stage();
    plus_plus();
    offload();
    precision();
    optimizer();
    batch();
    clip();
    dtypes();
    if (faults_.empty()) return std::move(result_);
    std::string text = zero::shown(source_) + " cannot be planned:";
    for (const std::string& fault : faults_) text += "\n  - " + fault;
    throw zero::ConfigError(text);
  }

 private:
  void flatten(const Json& value, const std::string& path) {
    for (const auto& [key, child] : value.items()) {
      const std::string name = zero::path_of(path, key);
      if (switched_off(child) || (child.empty() && is_section(name))) continue;
      if (child.is_object() && !child.empty()) {
        flatten(child, name);
      } else {
        sort(name, child);
      }
    }
  }

  void sort(const std::string& path, const Json& value) {
    const KeyRule* const rule = rule_of_key(path);
    const std::string shown = zero::shown(path) + " " + models::shown(value);
    if (rule == nullptr) {
      faults_.push_back(is_section(path) ? path + " is " + models::shown(value) + ", not an object" : unknown(path));
    } else if (rule->fate == Fate::harmless) {
      result_.not_needed.push_back(shown + ": " + std::string(rule->text));
    } else if (value == "auto") {
      result_.automatic.push_back(path);
    } else if (rule->fate == Fate::read) {
      values_.emplace(path, value);
    } else if (!among(rule->off, value.dump())) {
      faults_.push_back(shown + " is not supported in this version: " + std::string(rule->text));
    }
  }

  static std::string unknown(const std::string& path) {
    return zero::shown(path) + ": this key is not known" + zero::did_you_mean(path, known_keys());
  }

  void wrong(const std::string& path, const char* wanted) {
    faults_.push_back(path + " is " + models::shown(values_.at(path)) + ", not " + wanted);
  }

  std::optional<std::int64_t> integer(const std::string& path, std::int64_t least, std::int64_t most) {
    const auto found = values_.find(path);
    if (found == values_.end()) return {};
    const auto number = models::integer_within(found->second, least, most);
    if (!number) wrong(path, least == 0 ? "a stage from 0 to 3" : "a positive integer of at most 1048576");
    return number;
  }

  std::optional<double> number(const std::string& path) {
    const auto found = values_.find(path);
    if (found == values_.end()) return {};
    if (found->second.is_number() && found->second.get<double>() >= 0) return found->second.get<double>();
    wrong(path, "a number of at least 0");
    return {};
  }

  std::optional<std::string> text(const std::string& path) {
    const auto found = values_.find(path);
    if (found == values_.end()) return {};
    if (found->second.is_string()) return zero::lower(found->second.get<std::string>());
    wrong(path, "a string");
    return {};
  }

  bool on(const std::string& path) {
    const auto found = values_.find(path);
    if (found == values_.end()) return false;
    if (!found->second.is_boolean()) wrong(path, "true or false");
    return found->second == true;
  }

  bool is_automatic(const std::string& path) const { return std::ranges::count(result_.automatic, path) > 0; }

  void took(const std::string& path, const std::string& what) { result_.taken.push_back(path + ": " + what); }

  // DeepSpeed's default is no stage at all.
  void stage() {
    const std::string path = "zero_optimization.stage";
    if (is_automatic(path)) return;
    const std::int64_t value = integer(path, 0, 3).value_or(0);
    result_.plan = std::string(zero::Plan::stages()[static_cast<std::size_t>(value)]);
    took(path, std::to_string(value) + " is plan " + *result_.plan);
  }

  // ZeRO++'s three, each by itself: groups are of hpZ's size.
  void plus_plus() {
    const std::string section = "zero_optimization.", group = section + "zero_hpz_partition_size";
    const std::int64_t size = integer(group, 1, 1 << 20).value_or(1);
    const auto choose = [&](const std::string& key, const char* setting, const char* value) {
      if (!is_automatic(section + "stage") && plan_stage() != 3)
        faults_.push_back(key + " needs zero_optimization.stage 3");
      result_.settings.set(setting, value);
      took(key, zero::option_named(setting) + " " + value);
    };
    if (size > 1) {
      result_.shard_ranks = static_cast<int>(size);
      choose(group, "keep_gathered", "shard");
      took(group, "--shard-ranks " + std::to_string(size));
    }
    if (on(section + "zero_quantized_weights")) choose(section + "zero_quantized_weights", "gather_in", "int8");
    const std::string gradients = section + "zero_quantized_gradients";
    if (on(gradients)) choose(gradients, "reduce_in", "int4");
    feedback(section + "zeropp_loco_param.", gradients);
  }

  // Its numbers are ours.
  void feedback(const std::string& loco, const std::string& coded) {
    if (std::ranges::none_of(values_, [&](const auto& each) { return each.first.starts_with(loco); })) return;
    if (!on(coded)) faults_.push_back(loco + "* needs " + coded + " true: nothing else is rounded");
    result_.settings.set("error_feedback", true);
    took(loco + "*", "--error-feedback: what is rounded off is sent whole with the next, and begins anew every " +
                         std::to_string(zero::Plan::kErrorSteps) + " steps");
  }

  // Gradients go where the optimizer is. Older keys say "cpu" by true.
  void offload() {
    const std::string section = "zero_optimization.offload_";
    const bool automatic = is_automatic("zero_optimization.stage");
    const int stage = automatic ? 3 : static_cast<int>(plan_stage());
    if (const std::string tier = tier_of(section + "optimizer.device", {"zero_optimization.cpu_offload"});
        !tier.empty()) {
      const double ratio = number(section + "optimizer.ratio").value_or(1);
      if (stage < 1) faults_.push_back(section + "optimizer needs zero_optimization.stage 1, 2 or 3");
      if (ratio <= 0 || ratio > 1) faults_.push_back(section + "optimizer.ratio must be above 0, and at most 1");
      add_offload("optimizer=" + tier + (ratio == 1 ? "" : ":" + zero::shortest(ratio)) + ",gradient=" + tier);
      took(section + "optimizer", "--offload " + result_.settings.text("offload"));
    }
    const std::string tier = tier_of(section + "param.device",
                                     {"zero_optimization.cpu_offload_param", "zero_optimization.cpu_offload_params"});
    if (tier.empty()) return;
    if (stage != 3) faults_.push_back(section + "param needs zero_optimization.stage 3");
    add_offload("parameter=" + tier);
    took(section + "param", "--offload parameter=" + tier);
  }

  std::int64_t plan_stage() const {
    const auto stages = zero::Plan::stages();
    return std::ranges::find(stages, *result_.plan) - stages.begin();
  }

  void add_offload(const std::string& states) {
    const std::string before = result_.settings.text("offload");
    result_.settings.set("offload", before.empty() ? states : before + "," + states);
  }

  // Empty: none was named.
  std::string tier_of(const std::string& path, const std::vector<std::string>& switches) {
    const auto device = text(path);
    const bool on_host = std::ranges::any_of(switches, [&](const std::string& each) { return on(each); });
    if (!device) return on_host ? "host" : "";
    if (*device == "cpu") return "host";
    if (*device == "nvme") return "disk";
    wrong(path, "\"cpu\", \"nvme\" or \"none\"");
    return {};
  }

  void precision() {
    const bool half = on("fp16.enabled"), brain = on("bf16.enabled") || on("bfloat16.enabled");
    if (half && brain) faults_.emplace_back("fp16.enabled and bf16.enabled are both true: choose one");
    const bool open = is_automatic("fp16.enabled") || is_automatic("bf16.enabled") || is_automatic("bfloat16.enabled");
    if (open && !half && !brain) return;
    const std::string precision = half ? "fp16" : brain ? "bf16" : "fp32";
    result_.settings.set("precision", precision);
    took(half ? "fp16.enabled" : brain ? "bf16.enabled" : "neither fp16 nor bf16", "precision " + precision);
  }

  void optimizer() {
    result_.lr = number("optimizer.params.lr");
    const auto type = text("optimizer.type");
    if (!type) return;
    const auto known = std::ranges::find_if(kOptimizers, [&](const auto& each) { return *type == each.deepspeed; });
    if (known == kOptimizers.end()) {
      faults_.push_back("optimizer.type " + zero::in_quotes(*type, '"') +
                        " is not supported in this version: see --optimizer");
      return;
    }
    result_.optimizer = known->ours;
    const auto mode = values_.find("optimizer.params.adam_w_mode");
    if (*type == "adam" && mode != values_.end() && mode->second == false) result_.optimizer = "adam";
    if (*type == "sgd" && number("optimizer.params.momentum").value_or(0) > 0) result_.optimizer = "momentum";
    took("optimizer.type", *type + " is --optimizer " + *result_.optimizer);
  }

  // Any two of the three sizes give the third; what is known from elsewhere counts where the file leaves it open.
  void batch() {
    constexpr std::int64_t kMost = 1 << 20;
    const auto total = integer(kTotal, 1, kMost);
    auto micro = integer(kMicro, 1, kMost), steps = integer(kSteps, 1, kMost);
    if (!micro && known_.batch <= kMost) micro = known_.batch;
    if (!steps && known_.accumulate <= kMost) steps = known_.accumulate;
    const auto known = models::product({micro.value_or(1), steps.value_or(1), ranks_});
    if (!known) return uncountable(micro.value_or(1), steps.value_or(1));
    if (total && micro && steps) {
      if (*total != *known) contradict(*total, *micro, *steps, *known);
    } else if (total) {
      if (*total % *known != 0) return indivisible(*total, *known, micro ? micro_name() : steps ? steps_name() : "1");
      return take_batch(micro.value_or(*total / *known), micro ? *total / *known : steps.value_or(1));
    }
    take_batch(micro, steps);
  }

  void take_batch(std::optional<std::int64_t> micro, std::optional<std::int64_t> steps) {
    result_.batch = micro;
    if (steps) result_.settings.set("accumulate", *steps);
    if (micro) std::erase(result_.automatic, kMicro);
    if (steps) std::erase(result_.automatic, kSteps);
    if (micro && (values_.contains(kMicro) || !known_.batch)) took(kMicro, "batch " + std::to_string(*micro));
    if (steps && (values_.contains(kSteps) || !known_.accumulate)) took(kSteps, "accumulate " + std::to_string(*steps));
  }

  // Where the sizes are from.
  const char* micro_name() const { return values_.contains(kMicro) ? kMicro : "--batch"; }
  const char* steps_name() const { return values_.contains(kSteps) ? kSteps : "--accumulate"; }

  std::string factors(std::int64_t micro, std::int64_t steps) const {
    return std::string(micro_name()) + " " + std::to_string(micro) + " x " + steps_name() + " " +
           std::to_string(steps) + " x " + std::to_string(ranks_) + " ranks";
  }

  void uncountable(std::int64_t micro, std::int64_t steps) {
    faults_.push_back(factors(micro, steps) + " are more sequences than can be counted");
  }

  void contradict(std::int64_t total, std::int64_t micro, std::int64_t steps, std::int64_t product) {
    faults_.push_back(std::string(kTotal) + " " + std::to_string(total) + " contradicts " + factors(micro, steps) +
                      " = " + std::to_string(product));
  }

  void indivisible(std::int64_t total, std::int64_t known, const std::string& other) {
    faults_.push_back(std::string(kTotal) + " " + std::to_string(total) + " does not divide by " +
                      std::to_string(known) + ", which is " + other + " x " + std::to_string(ranks_) + " ranks");
  }

  void clip() {
    result_.clip = number("gradient_clipping");
    if (result_.clip) took("gradient_clipping", "`zero train --clip`, which changes no byte");
    if (result_.lr) took("optimizer.params.lr", "`zero train --lr`, which changes no byte");
  }

  void dtypes() {
    const auto wire = text("communication_data_type");
    const bool coded = result_.settings.says("reduce_in");
    if (wire && coded)
      result_.not_needed.push_back("communication_data_type \"" + *wire +
                                   "\": quantized gradients travel inside groups as they are");
    else if (wire)
      reduce_in(*wire == "bfp16" ? "bf16" : *wire);
    const auto kept = text("data_types.grad_accum_dtype");
    if (!kept) return;
    const bool once = result_.settings["accumulate"] == zero::SettingValue(std::int64_t{1});
    if (*kept == "fp32" || (once && (*kept == "bf16" || *kept == "fp16"))) {
      took("data_types.grad_accum_dtype", "sums of micro-batches are fp32; one micro-batch's gradients are not summed");
    } else {
      faults_.push_back("data_types.grad_accum_dtype " + zero::in_quotes(*kept, '"') +
                        " is not supported in this version: gradients are accumulated in fp32");
    }
  }

  void reduce_in(const std::string& dtype) {
    if (dtype != "fp32" && dtype != "fp16" && dtype != "bf16")
      return wrong("communication_data_type", "fp32, fp16 or bfp16");
    result_.settings.set("reduce_in", dtype);
    took("communication_data_type", "gradients are reduced in " + dtype);
  }

  std::string source_;
  int ranks_;
  Known known_;
  std::map<std::string, Json> values_;  // of keys that are read
  DeepSpeed result_;
  std::vector<std::string> faults_;
};

}  // namespace

DeepSpeed deepspeed_from_json(const std::string& text, const std::string& source, int ranks, const Known& known) {
  return Reader(models::json_object(text, source), source, ranks, known).read();
}

DeepSpeed read_deepspeed(const std::string& path, int ranks, const Known& known) {
  return Reader(models::json_file(path, "give DeepSpeed's configuration"), path, ranks, known).read();
}

}  // namespace planner

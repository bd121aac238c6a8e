#include "planner/deepspeed_keys.h"

#include <algorithm>
#include <array>

namespace planner {
namespace {

constexpr std::string_view kOverlaps = "reductions and gathers always overlap with computing";
constexpr std::string_view kInPlace = "collectives read and write the flat arrays in place, without buckets";
constexpr std::string_view kBudget = "gathered parameters have a budget in bytes, resident_budget";
constexpr std::string_view kPaging = "parameters are paged in by the operators that use them";
constexpr std::string_view kNoBytes = "it changes no byte; set it on the optimizer in C++";
constexpr std::string_view kScale = "it changes no byte; see zero::LossScale";
constexpr std::string_view kSchedule = "it changes no byte; `zero train --schedule` has its own";
constexpr std::string_view kDisk = "the disk's store measures what suits it; its folders are --disk's";
constexpr std::string_view kLogging = "it only logs";
constexpr std::string_view kSaving = "it only saves";
constexpr std::string_view kBuffers = "buffers between tiers are the engine's own, pinned, and of constant size";
constexpr std::string_view kSpeculation = "an update waits for the norm and the overflow flag of all ranks";
constexpr std::string_view kFrozen = "what is not trained is kept in the plan's precision";
constexpr std::string_view kRecompute = "activations are kept, whole and where they are";
constexpr std::string_view kParallel = "there is no such axis";
constexpr std::string_view kTensor =
    "ranks along the tensor axis are --tensor's, and what is cut is the program's to say";
constexpr std::string_view kTraining = "it changes what is trained";
constexpr std::string_view kWeights = "main weights and moments are fp32, or use --precision bf16-sr or bf16-kahan";

constexpr auto kZeroRules = std::to_array<KeyRule>({
    {"zero_optimization.stage", Fate::read, ""},
    {"zero_optimization.reduce_scatter", Fate::harmless, "gradients are always reduced by a reduce-scatter"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", Fate::harmless, kInPlace},
    {"zero_optimization.reduce_bucket_size", Fate::harmless, kInPlace},
    {"zero_optimization.allgather_bucket_size", Fate::harmless, kInPlace},
    {"zero_optimization.allgather_partitions", Fate::harmless, kInPlace},
    {"zero_optimization.overlap_comm", Fate::harmless, kOverlaps},
    {"zero_optimization.contiguous_gradients", Fate::harmless, kInPlace},
    {"zero_optimization.round_robin_gradients", Fate::harmless, "every rank owns a slice of each unit"},
    {"zero_optimization.ignore_unused_parameters", Fate::harmless, "parameters without a gradient are left alone"},
    {"zero_optimization.load_from_fp32_weights", Fate::harmless, kSaving},
    {"zero_optimization.elastic_checkpoint", Fate::harmless, kSaving},
    {"zero_optimization.sub_group_size", Fate::harmless, "the update goes unit by unit, without tiles"},
    {"zero_optimization.legacy_stage1", Fate::harmless, "there is one engine"},
    {"zero_optimization.enable_sanity_checks", Fate::harmless, "parameters are always checked; see ZERO_CHECK"},
    {"zero_optimization.log_trace_cache_warnings", Fate::harmless, kLogging},
    {"zero_optimization.leaf_module.*", Fate::harmless, kPaging},
    {"zero_optimization.stage3_prefetch_bucket_size", Fate::harmless, kBudget},
    {"zero_optimization.prefetch_bucket_size", Fate::harmless, kBudget},
    {"zero_optimization.stage3_param_persistence_threshold", Fate::harmless, kBudget},
    {"zero_optimization.param_persistence_threshold", Fate::harmless, kBudget},
    {"zero_optimization.stage3_model_persistence_threshold", Fate::harmless, kBudget},
    {"zero_optimization.model_persistence_threshold", Fate::harmless, kBudget},
    {"zero_optimization.stage3_max_live_parameters", Fate::harmless, kBudget},
    {"zero_optimization.max_live_parameters", Fate::harmless, kBudget},
    {"zero_optimization.stage3_max_reuse_distance", Fate::harmless, kBudget},
    {"zero_optimization.max_reuse_distance", Fate::harmless, kBudget},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", Fate::harmless, "zero::gather has them whole"},
    {"zero_optimization.gather_16bit_weights_on_model_save", Fate::harmless, "zero::gather has them whole"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", Fate::harmless, "zero::gather has them whole"},
    {"zero_optimization.stage3_module_granularity_threshold", Fate::harmless, kPaging},
    {"zero_optimization.module_granularity_threshold", Fate::harmless, kPaging},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", Fate::harmless, "units are gathered by an all-gather"},
    {"zero_optimization.use_all_reduce_for_fetch_params", Fate::harmless, "units are gathered by an all-gather"},
    {"zero_optimization.stage3_allgather_sequential", Fate::harmless, "a unit is gathered by one all-gather"},
    {"zero_optimization.allgather_sequential", Fate::harmless, "a unit is gathered by one all-gather"},
    {"zero_optimization.memory_efficient_linear", Fate::harmless, kPaging},
    {"zero_optimization.override_module_apply", Fate::harmless, kPaging},
    {"zero_optimization.pipeline_loading_checkpoint", Fate::harmless, kSaving},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", Fate::harmless, "Muon's momentum stays in memory"},
    {"zero_optimization.cpu_offload_use_pin_memory", Fate::harmless, kBuffers},
    {"zero_optimization.cpu_offload", Fate::read, ""},
    {"zero_optimization.cpu_offload_params", Fate::read, ""},
    {"zero_optimization.cpu_offload_param", Fate::read, ""},
    {"zero_optimization.offload_param.device", Fate::read, ""},
    {"zero_optimization.offload_optimizer.device", Fate::read, ""},
    {"zero_optimization.offload_optimizer.ratio", Fate::read, ""},
    {"zero_optimization.offload_optimizer.super_offload", Fate::refused, kSpeculation, "false"},
    {"zero_optimization.offload_param.nvme_path", Fate::harmless, kDisk},
    {"zero_optimization.offload_optimizer.nvme_path", Fate::harmless, kDisk},
    {"zero_optimization.offload_param.*", Fate::harmless, kBuffers},
    {"zero_optimization.offload_optimizer.*", Fate::harmless, kBuffers},
    {"zero_optimization.zenflow.*", Fate::refused, "every step updates every parameter"},
    {"zero_optimization.zero_hpz_partition_size", Fate::read, ""},
    {"zero_optimization.zero_quantized_weights", Fate::read, ""},
    {"zero_optimization.zero_quantized_nontrainable_weights", Fate::refused, kFrozen, "false"},
    {"zero_optimization.zero_quantized_gradients", Fate::read, ""},
    {"zero_optimization.zeropp_loco_param.*", Fate::read, ""},
    {"zero_optimization.mics_shard_size", Fate::refused, "slices go over all ranks", "-1"},
    {"zero_optimization.mics_hierarchical_params_gather", Fate::refused, "slices go over all ranks", "false"},
});

constexpr auto kRules = std::to_array<KeyRule>({
    {"train_batch_size", Fate::read, ""},
    {"train_micro_batch_size_per_gpu", Fate::read, ""},
    {"gradient_accumulation_steps", Fate::read, ""},
    {"optimizer.type", Fate::read, ""},
    {"optimizer.params.lr", Fate::read, ""},
    {"optimizer.params.adam_w_mode", Fate::read, ""},
    {"optimizer.params.momentum", Fate::read, ""},
    {"optimizer.params.*", Fate::harmless, kNoBytes},
    {"scheduler.*", Fate::harmless, kSchedule},
    {"fp16.enabled", Fate::read, ""},
    {"fp16.fp16_master_weights_and_grads", Fate::refused, kWeights, "false"},
    {"fp16.*", Fate::harmless, kScale},
    {"bf16.enabled", Fate::read, ""},
    {"bfloat16.enabled", Fate::read, ""},
    {"bf16.bf16_master_weights_and_grads", Fate::refused, kWeights, "false"},
    {"bf16.bf16_optimizer_states", Fate::refused, "--optimizer adamw-bf16 keeps moments in bf16", "false"},
    {"bf16.immediate_grad_update", Fate::harmless, "gradients are reduced as soon as their unit has them all"},
    {"bf16.check_grad_overflow", Fate::harmless, "a step whose gradient is not finite is skipped in every precision"},
    {"gradient_clipping", Fate::read, ""},
    {"communication_data_type", Fate::read, ""},
    {"data_types.grad_accum_dtype", Fate::read, ""},
    {"prescale_gradients", Fate::harmless, "sums are made in fp32 and divided once, at the end"},
    {"gradient_predivide_factor", Fate::harmless, "sums are made in fp32 and divided once, at the end"},
    {"seq_parallel_communication_data_type", Fate::harmless, kParallel},
    {"gradient_allreduce_op", Fate::refused, "gradients are averaged", "\"mean\""},
    {"managed_gradient_accumulation", Fate::refused, "step() waits for all micro-batches", "true"},
    {"sparse_gradients", Fate::refused, "gradients are dense", "false"},
    {"zero_allow_untested_optimizer", Fate::harmless, "an optimizer that cannot work on slices is refused by itself"},
    {"zero_force_ds_cpu_optimizer", Fate::harmless, "the host's updates are the engine's own"},
    {"aio.*", Fate::harmless, kDisk},

    {"activation_checkpointing.partition_activations", Fate::refused,
     "the program has it (Options::partition_activations); activations are planned whole", "false"},
    {"activation_checkpointing.cpu_checkpointing", Fate::refused, kRecompute, "false"},
    {"activation_checkpointing.contiguous_memory_optimization", Fate::refused, kRecompute, "false"},
    {"activation_checkpointing.number_checkpoints", Fate::refused, kRecompute, "null 0"},
    {"activation_checkpointing.*", Fate::harmless, kRecompute},
    {"tensor_parallel.autotp_size", Fate::refused, kTensor, "0 1"},
    {"tensor_parallel.*", Fate::harmless, kTensor},
    {"sequence_parallel_size", Fate::refused, kParallel, "1"},
    {"pipeline.*", Fate::refused, kParallel},
    {"amp.*", Fate::refused, "choose a precision: fp16 or bf16"},
    {"torch_autocast.*", Fate::refused, "choose a precision: autocast comes with it"},
    {"compile.deepcompile", Fate::refused, "models run as they are", "false"},
    {"compile.*", Fate::harmless, "models run as they are"},
    {"compression_training.*", Fate::refused, kTraining},
    {"progressive_layer_drop.*", Fate::refused, kTraining},
    {"quantize_training.*", Fate::refused, kTraining},
    {"sparse_attention.*", Fate::refused, kTraining},
    {"eigenvalue.*", Fate::refused, kTraining},
    {"curriculum_learning.*", Fate::refused, kTraining},
    {"data_efficiency.*", Fate::refused, kTraining},
    {"hybrid_engine.*", Fate::refused, kTraining},
    {"elasticity.*", Fate::refused, "the ranks stay the same"},
    {"dataloader_drop_last", Fate::harmless, "data are chosen by the global index of a micro-batch"},
    {"disable_allgather", Fate::harmless, "parameters are always gathered as the plan says"},
    {"graph_harvesting", Fate::harmless, "operators run one by one"},
    {"checkpoint.*", Fate::harmless, kSaving},
    {"nebula.*", Fate::harmless, kSaving},
    {"datastates_ckpt.*", Fate::harmless, kSaving},
    {"steps_per_print", Fate::harmless, kLogging},
    {"wall_clock_breakdown", Fate::harmless, kLogging},
    {"memory_breakdown", Fate::harmless, kLogging},
    {"dump_state", Fate::harmless, kLogging},
    {"tensorboard.*", Fate::harmless, kLogging},
    {"wandb.*", Fate::harmless, kLogging},
    {"comet.*", Fate::harmless, kLogging},
    {"csv_monitor.*", Fate::harmless, kLogging},
    {"flops_profiler.*", Fate::harmless, kLogging},
    {"comms_logger.*", Fate::harmless, kLogging},
    {"autotuning.*", Fate::harmless, "`zero plan --fit` chooses"},
});

constexpr std::array<std::span<const KeyRule>, 2> kTables{kZeroRules, kRules};

bool covers(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  return path.starts_with(pattern.substr(0, pattern.size() - 1)) || path == pattern.substr(0, pattern.size() - 2);
}

}  // namespace

// Exact paths come before patterns that cover them too.
const KeyRule* rule_of_key(std::string_view path) {
  for (const std::span<const KeyRule> rules : kTables)
    for (const KeyRule& rule : rules)
      if (covers(rule.path, path)) return &rule;
  return nullptr;
}

std::vector<std::string> known_keys() {
  std::vector<std::string> keys;
  for (const std::span<const KeyRule> rules : kTables)
    for (const KeyRule& rule : rules)
      if (!rule.path.ends_with('*')) keys.emplace_back(rule.path);
  return keys;
}

bool is_section(std::string_view path) {
  const auto holds = [&](const KeyRule& rule) {
    const bool below = rule.path.starts_with(path) && rule.path.substr(path.size()).starts_with('.');
    return below && !(rule.fate == Fate::refused && rule.path.ends_with('*'));
  };
  return std::ranges::any_of(kTables, [&](const auto& rules) { return std::ranges::any_of(rules, holds); });
}

}  // namespace planner

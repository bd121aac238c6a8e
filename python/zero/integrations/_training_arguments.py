"""What transformers' TrainingArguments say, as an engine takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers

from .. import _native
from .._native import ConfigError, Plan

_PAST_OPERATORS = "its kernels go past the operators by which parameters are brought: leave it out"
_SHARDS = "leave it out: `zero_plan` says what is sharded"
_WHOLE_MODELS = "evaluations are in the plan's precision: bf16=True"
_REFUSED = {
    "deepspeed": _SHARDS,
    "fsdp": _SHARDS,
    "parallelism_config": _SHARDS,
    "auto_find_batch_size": "an engine is built once: set per_device_train_batch_size",
    "torch_compile": _PAST_OPERATORS,
    "use_liger_kernel": _PAST_OPERATORS,
    "jit_mode_eval": _PAST_OPERATORS,
    "fp16_full_eval": _WHOLE_MODELS,
    "bf16_full_eval": _WHOLE_MODELS,
}
_OPTIMIZERS: dict[type, Callable[..., Any]] = {
    torch.optim.AdamW: _native.AdamW,
    torch.optim.SGD: _native.SGD,
    torch.optim.Adagrad: _native.Adagrad,
    torch.optim.RMSprop: _native.RMSprop,
}
_OF_KERNELS = ("fused", "foreach", "capturable")  # how PyTorch's own computes, which is not what it computes
_OF_THE_ARGUMENTS = ("model", "plan", "optimizer", "clip", "seed", "groups")


def refuse(args: transformers.TrainingArguments) -> None:
    """Raises ConfigError for what an engine cannot do."""
    for name, hint in _REFUSED.items():
        if value := getattr(args, name, None):
            raise ConfigError(f"`{name}` of TrainingArguments is {value!r} ({hint})")
    if getattr(args, "half_precision_backend", "auto") == "apex":
        raise ConfigError("`half_precision_backend` of TrainingArguments is 'apex' (the engine scales losses: 'auto')")
    if args.n_gpu > 1:
        raise ConfigError(
            f"one process has {args.n_gpu} GPUs (start one for each: torchrun --nproc-per-node={args.n_gpu})"
        )


def plan_of(plan: Plan | str, args: transformers.TrainingArguments) -> Plan:
    """The plan, of which the arguments say the precision and the micro-batches of a step."""
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32"
    micro_batches = args.gradient_accumulation_steps
    if isinstance(plan, str):
        return Plan(plan, precision=precision, accumulate=micro_batches)
    if plan.accumulate != micro_batches:
        raise ConfigError(
            f"`zero_plan` accumulates {plan.accumulate} micro-batches, `gradient_accumulation_steps` of "
            f"TrainingArguments is {micro_batches} (the same in both)"
        )
    if not plan.precision.startswith(precision) and precision != "fp32":
        raise ConfigError(
            f"`{precision}` of TrainingArguments is True, the precision of `zero_plan` is {plan.precision!r} (the same "
            "in both, or in the plan alone)"
        )
    return plan


def optimizer_of(kind: type, values: Mapping[str, Any], args: transformers.TrainingArguments) -> Any:
    """The engine's, for that which transformers would build."""
    if kind not in _OPTIMIZERS:
        known = "adamw_torch, adamw_torch_fused, sgd, adagrad, rmsprop"
        raise ConfigError(
            f"`optim` of TrainingArguments is {getattr(args.optim, 'value', args.optim)!r}, which is {kind.__module__}.{kind.__qualname__} "
            f"({known}; or another of zero's as `zero_optimizer`, zero.Muon(3e-4) for example)"
        )
    named = {name: value for name, value in values.items() if name not in _OF_KERNELS}
    return _OPTIMIZERS[kind](**{"weight_decay": args.weight_decay, **named})


def require_options(options: Mapping[str, Any]) -> None:
    for name in _OF_THE_ARGUMENTS:
        if name in options:
            raise ConfigError(f"`zero_options` has {name!r} (the Trainer says it, from its own arguments)")
    if "ignored" in options:
        raise ConfigError("`zero_options` has 'ignored' (the Trainer saves what the engine has: it has to have all)")

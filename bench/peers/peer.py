"""One training run of the model under a peer's data parallelism on the CPU. Start it with torchrun.

Rank 0 prints one line, RESULT and JSON. `window` is where the measured steps lie on the monotonic clock.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model import LanguageModel, Shape

ADAMW: dict[str, Any] = dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
SEED_OF_DATA = 1234


class Trainer(Protocol):
    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """One whole training step; returns this rank's loss."""


class TorchTrainer:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, autocast: bool = False):
        self.model, self.optimizer, self.autocast = model, optimizer, autocast

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else contextlib.nullcontext():
            loss = self.model(tokens, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


class TensorTrainer(TorchTrainer):
    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        from torch.distributed.tensor.parallel import loss_parallel

        with loss_parallel():
            return super().step(tokens, targets)


class DeepSpeedTrainer:
    def __init__(self, engine: Any):
        self.engine = engine

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = self.engine(tokens, targets)
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()


def recompute(model: LanguageModel, which: str) -> None:
    """Layers compute their activations again in backward: all of them, every other one, or of all of them what is no
    product (as torchtitan does it: attention is kept, and every other product)."""
    from torch.utils import checkpoint as library

    products = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

    def contexts() -> Any:
        count = 0

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if op in products:
                count += not context.is_recompute
            keeps = op == attention or (op in products and count % 2 == 0)
            choices = library.CheckpointPolicy
            return choices.MUST_SAVE if keeps else choices.PREFER_RECOMPUTE

        return library.create_selective_checkpoint_contexts(policy)

    options: dict[str, Any] = {"context_fn": contexts} if which == "selective" else {}
    for layer in model.layers[:: 2 if which == "half" else 1]:
        layer.forward = functools.partial(library.checkpoint, layer.forward, use_reentrant=False, **options)


def replicate(model: nn.Module) -> DistributedDataParallel:
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def ddp(model: nn.Module, options: argparse.Namespace) -> Trainer:
    replica = replicate(model)
    return TorchTrainer(replica, torch.optim.AdamW(replica.parameters(), fused=True, **ADAMW), options.dtype == "bf16")


def zero_redundancy(model: nn.Module, options: argparse.Namespace) -> Trainer:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    replica = replicate(model)
    optimizer = ZeroRedundancyOptimizer(
        replica.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, fused=True, **ADAMW
    )
    return TorchTrainer(replica, optimizer, options.dtype == "bf16")


def fsdp2(reshard: bool, replicas: bool = False) -> Callable[[LanguageModel, argparse.Namespace], Trainer]:
    """Every layer is a unit, and the rest is one. With replicas: HSDP, sharded inside each host."""

    def build(model: LanguageModel, options: argparse.Namespace) -> Trainer:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        policy = bf16 if options.dtype == "bf16" else MixedPrecisionPolicy()
        ranks, here = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
        shape, names = ((ranks // here, here), ("replica", "shard")) if replicas else ((ranks,), ("shard",))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for module in (*model.layers, model):
            fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        return TorchTrainer(model, torch.optim.AdamW(model.parameters(), fused=True, **ADAMW))

    return build


def deepspeed(stage: int) -> Callable[[nn.Module, argparse.Namespace], Trainer]:
    def build(model: nn.Module, options: argparse.Namespace) -> Trainer:
        import deepspeed as library

        config = {
            "train_micro_batch_size_per_gpu": options.batch,
            "gradient_accumulation_steps": 1,
            "bf16": {"enabled": options.dtype == "bf16"},
            "zero_optimization": {"stage": stage, "overlap_comm": False, "stage3_param_persistence_threshold": 0},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)
        engine, *_ = library.initialize(model=model, optimizer=optimizer, config=config)
        return DeepSpeedTrainer(engine)

    return build


def tensor(model: LanguageModel, options: argparse.Namespace) -> Trainer:
    """Tensor parallelism over all ranks by DTensor, cut as Megatron-LM cuts, the words at both ends."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor import parallel

    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    column, row = parallel.ColwiseParallel, parallel.RowwiseParallel
    plan: dict[str, Any] = {
        "table": row(input_layouts=Replicate()),
        "head": column(output_layouts=Shard(-1), use_local_output=False),
    }
    for number, layer in enumerate(model.layers):
        layer.attention.heads //= ranks
        for name in ("query", "key", "value"):
            plan[f"layers.{number}.attention.{name}"] = column()
        plan[f"layers.{number}.attention.output"] = row()
        plan[f"layers.{number}.mlp.gate"] = plan[f"layers.{number}.mlp.up"] = column()
        plan[f"layers.{number}.mlp.down"] = row()
    parallel.parallelize_module(model, mesh, plan)
    # Which one foreach takes only apart.
    kinds = [[p for p in model.parameters() if isinstance(p, DTensor) == cut] for cut in (True, False)]
    optimizer = torch.optim.AdamW([{"params": each} for each in kinds], foreach=True, **ADAMW)
    return TensorTrainer(model, optimizer, options.dtype == "bf16")


MODES: dict[str, Callable[..., Trainer]] = {
    "ddp": ddp,
    "zero_redundancy": zero_redundancy,
    "fsdp2_no_reshard": fsdp2(reshard=False),
    "fsdp2": fsdp2(reshard=True),
    "hsdp": fsdp2(reshard=True, replicas=True),
    "tensor": tensor,
    "deepspeed1": deepspeed(1),
    "deepspeed2": deepspeed(2),
    "deepspeed3": deepspeed(3),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", required=True, choices=MODES)
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--recompute", default="none", choices=["none", "half", "layers", "selective"])
    sizes = dict(layers=8, dim=512, heads=8, ffn=1408, vocab=4096, seq=128, batch=2, steps=5, warmup=2)
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def join(mode: str) -> None:
    if mode.startswith("deepspeed"):
        import deepspeed as library

        library.init_distributed("gloo")
    else:
        dist.init_process_group("gloo")


def pss() -> int:
    """This process's share of the memory it maps, in bytes."""
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def settled_pss() -> int:
    """While all ranks are at the same place: what they share is divided by all of them."""
    dist.barrier()
    bytes_ = pss()
    dist.barrier()
    return bytes_


def timed(trainer: Trainer, batch: Tensor) -> tuple[float, Tensor]:
    tokens, targets = batch[:, :-1], batch[:, 1:]
    dist.barrier()
    start = time.perf_counter()
    loss = trainer.step(tokens, targets)
    dist.barrier()
    return time.perf_counter() - start, loss


def train(trainer: Trainer, options: argparse.Namespace) -> tuple[list[float], list[float], list[float]]:
    """Seconds of the measured steps, this rank's losses of all, and the window."""
    # Of the tensor axis all ranks have the same batches.
    place = 0 if options.mode == "tensor" else dist.get_rank()
    random = torch.Generator().manual_seed(SEED_OF_DATA + place)
    seconds, losses, window = [], [], [time.monotonic()]
    for step in range(options.warmup + options.steps):
        batch = torch.randint(0, options.vocab, (options.batch, options.seq + 1), generator=random)
        if step == options.warmup:
            window = [time.monotonic()]
        elapsed, loss = timed(trainer, batch)
        losses.append(loss.item())
        if step >= options.warmup:
            seconds.append(elapsed)
    return seconds, losses, [*window, time.monotonic()]


def gathered(value: Any) -> list[Any]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, value)
    return everyone


def run(options: argparse.Namespace) -> dict[str, Any]:
    base = settled_pss()
    torch.manual_seed(0)
    shape = Shape(options.layers, options.dim, options.heads, options.ffn, options.vocab, options.seq)
    model = LanguageModel(shape)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if options.recompute != "none":
        recompute(model, options.recompute)
    seconds, losses, window = train(MODES[options.mode](model, options), options)
    return dict(
        mode=options.mode,
        dtype=options.dtype,
        world=dist.get_world_size(),
        parameters=parameters,
        step_seconds=seconds,
        losses=[sum(step) / len(step) for step in zip(*gathered(losses))],
        base_pss=gathered(base),
        pids=gathered(os.getpid()),
        window=window,
    )


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    join(options.mode)
    result = run(options)
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

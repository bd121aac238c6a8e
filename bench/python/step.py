#!/usr/bin/env python3
"""A training step of a transformers Llama from Python: ours, plain PyTorch's and FSDP2's in turns, each in processes of
its own, since ours replaces LibTorch's allocator. The figure to read is the median of the ratios round by round.

    PYTHONPATH=build/python/package python -m torch.distributed.run --standalone --nproc-per-node=4 bench/python/step.py

transformers is taken from build/tests-venv where Python has none.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

ADAMW = dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
SEED_OF_DATA = 1234

Step = Callable[[torch.Tensor], float]  # of this rank's tokens; returns the loss


def model_of(options: argparse.Namespace) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=options.dim,
        intermediate_size=options.ffn,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        vocab_size=options.vocab,
        max_position_embeddings=options.seq,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def of_torch(model: nn.Module, clip: float) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, **ADAMW)

    def step(tokens: torch.Tensor) -> float:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def plain(options: argparse.Namespace) -> Step:
    return of_torch(model_of(options), options.clip)


def fsdp2(options: argparse.Namespace) -> Step:
    """Every layer is a unit, and the rest is one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = model_of(options)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh)
    return of_torch(model, options.clip)


def ours(plan: str) -> Callable[[argparse.Namespace], Step]:
    def build(options: argparse.Namespace) -> Step:
        import zero

        model = model_of(options)
        engine = zero.Engine(model, plan, zero.AdamW(**ADAMW), clip=options.clip)

        def step(tokens: torch.Tensor) -> float:
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            engine.step()
            return loss.item()

        return step

    return build


CONTENDERS: dict[str, Callable[[argparse.Namespace], Step]] = {
    "plain": plain,
    "fsdp2": fsdp2,
    **{plan: ours(plan) for plan in ("ddp", "zero1", "zero2", "zero3")},
}


def free_port() -> int:
    """The same on all ranks."""
    port = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        with socket.socket() as some:
            some.bind(("", 0))
            port[0] = some.getsockname()[1]
    dist.broadcast(port, 0)
    return int(port)


def contend(name: str, options: argparse.Namespace, port: int, turns: Connection) -> None:
    """A rank of a contender: a step of the tokens that it is sent, until there are none."""
    find_transformers()
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    step = CONTENDERS[name](options)
    turns.send(None)
    while (tokens := turns.recv()) is not None:
        turns.send(step(tokens))


def begin(name: str, options: argparse.Namespace) -> Connection:
    """Returns when it is ready."""
    ours_end, its_end = get_context("spawn").Pipe()
    get_context("spawn").Process(target=contend, args=(name, options, free_port(), its_end)).start()
    its_end.close()  # so that its end is heard
    ours_end.recv()
    return ours_end


def timed(turns: Connection, tokens: torch.Tensor) -> tuple[float, float]:
    dist.barrier()
    begin = time.perf_counter()
    turns.send(tokens)
    loss = turns.recv()
    dist.barrier()
    return time.perf_counter() - begin, loss


def measure(options: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of the measured rounds and losses of all, by contender."""
    contenders = {name: begin(name, options) for name in options.of}
    random = torch.Generator().manual_seed(SEED_OF_DATA + dist.get_rank())
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    losses: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(options.warmup + options.rounds):
        tokens = torch.randint(options.vocab, (options.batch, options.seq), generator=random)
        names = list(contenders)
        for name in names if number % 2 else reversed(names):
            elapsed, loss = timed(contenders[name], tokens)
            losses[name].append(loss)
            if number >= options.warmup:
                seconds[name].append(elapsed)
    for turns in contenders.values():
        turns.send(None)
    return seconds, losses


def report(seconds: dict[str, list[float]], against: str) -> None:
    for name, own in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(own, seconds[against], strict=True)]
        print(
            f"{name:6} {statistics.median(own):.4f} s, {statistics.median(ratios):.3f} of {against} "
            f"({min(ratios):.3f} to {max(ratios):.3f})"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", nargs="+", choices=CONTENDERS, help="contenders; the first is what others are held to")
    sizes = dict(layers=8, dim=512, heads=8, ffn=1408, vocab=4096, seq=128, batch=2, rounds=15, warmup=3)
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--clip", type=float, default=0.0, help="largest norm of the gradient; 0: none")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def find_transformers() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not importlib.util.find_spec("transformers"):
        root = Path(__file__).resolve().parents[2]
        sys.path += map(str, root.glob("build/tests-venv/lib/python*/site-packages"))


def main() -> None:
    options = parse()
    find_transformers()
    dist.init_process_group("gloo")
    options.of = options.of or (["plain", "zero3"] if dist.get_world_size() == 1 else ["fsdp2", "zero3", "ddp"])
    seconds, losses = measure(options)
    if dist.get_rank() == 0:
        spread = max(max(step) - min(step) for step in zip(*losses.values(), strict=True))
        size = sum(parameter.numel() for parameter in model_of(options).parameters())
        print(f"{size:,} parameters, {dist.get_world_size()} ranks; losses differ by at most {spread:.1e}")
        report(seconds, options.of[0])
        if options.json:
            result = {"seconds": seconds, "losses": losses, "options": vars(options)}
            options.json.write_text(json.dumps(result, default=str))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A Llama of transformers in bf16 under zero3, with dropout: whole, with gradient checkpointing, and within a budget.

    torchrun --standalone --nproc-per-node=2 bench/peers/transformers_llama.py [--budgets 50%,35%]

PYTHONPATH has the package zero and transformers. Steps are taken in turn, each model in an engine of its own; the
losses of all are the same.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
import torch.distributed as dist
import transformers
import zero


class Contender:
    def __init__(self, options: argparse.Namespace, name: str, budget: str | None, checkpoints: bool):
        self.name, self.options = name, options
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=8,
            num_attention_heads=8,
            vocab_size=4096,
            attention_dropout=0.1,
            use_cache=False,
        )
        self.model = transformers.LlamaForCausalLM(config).train()
        if checkpoints:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        plan = zero.Plan("zero3", precision="bf16", activation_budget=budget)
        self.engine = zero.Engine(self.model, plan, zero.AdamW(3e-4), seed=1)
        self.seconds: list[float] = []
        self.loss = 0.0

    def step(self) -> float:
        shape = (self.options.batch, self.options.seq)
        ids = torch.randint(4096, shape, generator=torch.Generator().manual_seed(self.engine.micro_batch))
        dist.barrier()
        began = time.perf_counter()
        self.model(input_ids=ids, labels=ids).loss.backward()
        self.loss = self.engine.step().loss
        return time.perf_counter() - began

    def row(self, first: Contender) -> str:
        ratios = sorted(mine / theirs for mine, theirs in zip(self.seconds, first.seconds, strict=True))
        report = self.engine.activations
        kept = f", {report.peak_bytes} of {report.unlimited_bytes} bytes" if report.budget_bytes else ""
        return (
            f"{self.name:14} {median(self.seconds):.3f} s, {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}),"
            f" loss {self.loss:.6f}{kept}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budgets", default="50%")
    for name, default in dict(batch=4, seq=256, rounds=7).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    all_of_them = [Contender(options, "whole", None, False), Contender(options, "checkpointing", None, True)]
    all_of_them += [Contender(options, budget, budget, False) for budget in options.budgets.split(",")]
    for turn in range(options.rounds + 4):
        for each in all_of_them:
            seconds = each.step()
            if turn >= 4:  # the first are recorded and planned
                each.seconds.append(seconds)
    if dist.get_rank() == 0:
        print("\n".join(each.row(all_of_them[0]) for each in all_of_them))
    dist.barrier()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The update of an offloaded optimizer: libzero's, torch::optim::AdamW's and DeepSpeed's CPUAdam in turns.

Each does the same: bf16 gradients in, fp32 main weights and two moments updated, bf16 parameters out. DeepSpeed's needs
the peers' environment (bench/peers), in which it compiles its kernel at first."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench/peers"))


class Program:
    """What bench/tiers/cpu_update.cpp serves."""

    def __init__(self, path: Path, elements: int, threads: int):
        command = [path, "--serve", f"--elements={elements}", f"--threads={threads}"]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.process.stdout.readline()

    def seconds(self, who: str) -> float:
        print(who, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


class CpuAdam:
    """The steps of a ZeRO-Offload's CPU optimizer around DeepSpeed's kernel."""

    def __init__(self, elements: int, threads: int):
        import torch
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        torch.set_num_threads(threads)
        self.gradient = (torch.randn(elements) * 0.02).to(torch.bfloat16)
        self.main = torch.nn.Parameter(torch.randn(elements) * 0.02)
        self.main.grad = torch.zeros_like(self.main)
        self.parameter = self.main.detach().to(torch.bfloat16)
        self.optimizer = DeepSpeedCPUAdam([self.main], lr=1e-3, weight_decay=0.1, adamw_mode=True)
        self.optimizer.step()

    def seconds(self) -> float:
        import time

        start = time.perf_counter()
        self.main.grad.copy_(self.gradient)
        self.optimizer.step()
        self.parameter.copy_(self.main.detach())
        return time.perf_counter() - start


def contest(options: argparse.Namespace) -> None:
    program = Program(options.program, options.elements, options.threads)
    adam = CpuAdam(options.elements, options.threads)
    contenders = {
        "libzero": lambda: program.seconds("libzero"),
        "torch::optim::AdamW with casts": lambda: program.seconds("torch"),
        "DeepSpeed CPUAdam with casts": adam.seconds,
    }
    seconds = {name: [] for name in contenders}
    for round in range(-2, options.rounds):
        for name, turn in contenders.items():
            taken = turn()
            if round >= 0:
                seconds[name].append(taken)
    print(f"{options.elements} parameters, medians of {options.rounds} rounds, {options.threads} threads of the peers")
    for name, all in seconds.items():
        ratio = statistics.median(each / ours for each, ours in zip(all, seconds["libzero"]))
        print(f"{name:32} {1e3 * statistics.median(all):8.2f} ms  {ratio:6.2f} times libzero's")
    for name, least in ("torch::optim::AdamW with casts", 5), ("DeepSpeed CPUAdam with casts", 1):
        ratio = statistics.median(each / ours for each, ours in zip(seconds[name], seconds["libzero"]))
        print(f"{'PASS' if ratio >= least else 'FAIL'}  times as fast as {name}: {ratio:.2f}, at least {least:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/bench/cpu_update")
    parser.add_argument("--venv", type=Path, default=ROOT / "build/peers-venv")
    parser.add_argument("--elements", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if Path(sys.prefix).resolve() == options.venv.resolve():
        return contest(options)
    import environment

    environment.prepare(options.venv)
    variables = {**environment.variables(options.venv), "OMP_NUM_THREADS": str(options.threads)}
    os.execve(options.venv / "bin/python", [options.venv / "bin/python", __file__, *sys.argv[1:]], variables)


if __name__ == "__main__":
    main()

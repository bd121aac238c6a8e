#!/usr/bin/env python3
"""Less memory for activations, and what it costs: PyTorch's checkpoints in FSDP2 beside budgets of ours.

A checkpoint on every layer, on every other one, and selective checkpoints (what is no product is computed again) have
their own peaks. Ours gets a budget by which its peak is no larger, and both take steps in turn. Memory: in runs of
their own, sampled from outside, the peak over what a rank held before it had a model.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import environment
import processes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KINDS = ["none", "half", "selective", "layers"]
MIB = 1 << 20


@dataclass
class Contender:
    command: list[str]
    peak: int = 0
    seconds: list[float] = field(default_factory=list)
    loss: float = 0.0


class Bench:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.variables = environment.variables(options.venv)
        sizes = dict(layers=8, dim=512, heads=8, ffn=1408, vocab=4096, seq=options.seq, batch=options.batch)
        self.work = [f"--{name}={value}" for name, value in sizes.items()] + [f"--dtype={options.dtype}"]

    def torchrun(self, program: list[str]) -> list[str]:
        launcher = [str(self.options.venv / "bin/torchrun"), "--standalone", f"--nproc-per-node={self.options.ranks}"]
        return [*launcher, *program, *self.work]

    def peer(self, kind: str) -> Contender:
        return Contender(self.torchrun([str(HERE / "peer.py"), "--mode=fsdp2", f"--recompute={kind}"]))

    def ours(self, budget: str) -> Contender:
        limit = [f"--activation-budget={budget}"] if budget else []
        return Contender(self.torchrun(["--no-python", str(self.options.ours), "--plan=zero3", *limit]))

    def run(self, contender: Contender, steps: int, sampled: bool) -> processes.Outcome:
        command = [*contender.command, f"--steps={steps}", "--warmup=4"]
        return processes.measure(command, self.variables, timeout=900, sampled=sampled)

    def weigh(self, contender: Contender) -> processes.Outcome:
        outcome = self.run(contender, steps=4, sampled=True)
        contender.peak = outcome.peak_over_base()
        contender.loss = outcome.result["losses"][0]
        return outcome

    def matching(self, peer: Contender, unlimited: int, rest: int) -> Contender:
        """Ours within the peer's peak: by the bytes that there are beside activations, then by what is above it."""
        budget = peer.peak - rest
        for _ in range(4):
            one = self.ours(str(min(budget, unlimited)))
            self.weigh(one)
            if one.peak <= peer.peak:
                return one
            budget -= one.peak - peer.peak + MIB
        return one

    def compare(self) -> None:
        free = self.ours("100%")
        unlimited = max(self.weigh(free).result["activations"])
        pairs: list[tuple[str, Contender, Contender]] = []
        for kind in KINDS:
            peer = self.peer(kind)
            self.weigh(peer)
            pairs.append((kind, peer, self.matching(peer, unlimited, free.peak - unlimited)))
            print(f"  {kind}: {peer.peak // MIB} and {pairs[-1][2].peak // MIB} MiB", file=sys.stderr, flush=True)
        for _ in range(self.options.rounds):
            for _, peer, one in pairs:
                for contender in (peer, one):
                    outcome = self.run(contender, self.options.steps, sampled=False)
                    contender.seconds.append(median(outcome.result["step_seconds"]))
        print("recompute   FSDP2 peak   step      ours peak    step      ratio (lowest to highest)   first losses")
        for kind, peer, one in pairs:
            ratios = sorted(mine / theirs for mine, theirs in zip(one.seconds, peer.seconds, strict=True))
            print(
                f"{kind:10} {peer.peak / MIB:7.0f} MiB {median(peer.seconds):8.3f} s {one.peak / MIB:7.0f} MiB"
                f" {median(one.seconds):8.3f} s    {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
                f"     {peer.loss:.5f} {one.loss:.5f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / "build/peers-venv")
    parser.add_argument("--ours", type=Path, default=ROOT / "build/release/bench/peers_ours")
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    for name, default in dict(ranks=1, batch=8, seq=256, steps=4, rounds=3).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if not (options.venv / "bin/torchrun").exists():
        environment.prepare(options.venv)
    Bench(options).compare()


if __name__ == "__main__":
    main()

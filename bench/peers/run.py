#!/usr/bin/env python3
"""Trains the same model on the same data under every peer and every plan of ours, and compares.

Time: each round runs each contender once, in an order that turns from round to round; a round's figure is the
median step of the run. Memory: in a run of its own, sampled from outside, the peak over what a rank held before
it had a model, the largest of all ranks. Tables go to standard output, progress to standard error.
Exit code 1 if contenders do different work or one of ours fails.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import environment
import processes
from report import Cell, Check, Record, Records, acceptance, table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = ["ddp", "zero_redundancy", "fsdp2_no_reshard", "fsdp2", "deepspeed1", "deepspeed2", "deepspeed3"]
PLANS = ["ddp", "zero1", "zero2", "zero3"]
OURS = [f"ours_{plan}" for plan in PLANS]
DEEP = dict(layers=8, dim=512, heads=8, ffn=1408, vocab=4096, seq=128, batch=2)
SHAPES: dict[str, dict[str, int]] = {
    "deep": DEEP,
    "wide": {**DEEP, "layers": 2, "dim": 1024, "heads": 16, "ffn": 2816},
    "batch1": {**DEEP, "batch": 1},
}
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}  # of first-step losses, relative
SECONDS_OF_A_STEP = 10  # at most, for the time that a growth run may take


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def flags(values: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


class Bench:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.variables = environment.variables(options.venv)

    def command(self, name: str, cell: Cell) -> list[str]:
        work = flags({**SHAPES[cell.shape], "dtype": cell.dtype})
        if name in OURS:
            launcher = [str(self.options.zero), "launch", "--no-prefix", f"-n{cell.world}", str(self.options.ours)]
            return [*launcher, f"--plan={name.removeprefix('ours_')}", *work]
        torchrun = [str(self.options.venv / "bin/torchrun"), "--standalone", f"--nproc-per-node={cell.world}"]
        return [*torchrun, str(HERE / "peer.py"), f"--mode={name}", *work]

    def run(self, name: str, cell: Cell, sampled: bool) -> processes.Outcome:
        steps = flags({"steps": self.options.steps, "warmup": self.options.warmup})
        command = [*self.command(name, cell), *steps]
        return processes.measure(command, self.variables, self.options.timeout, sampled=sampled)

    def attempt(self, name: str, cell: Cell, record: Record, work: Callable[[], str]) -> None:
        """Unless it failed before; what `work` returns is what there is to tell. A peer may fail once a round."""
        if record.error:
            return
        for tries_left in (0,) if name in OURS else (1, 0):
            try:
                return note(f"  {name}: {work()}")
            except processes.RunFailed as error:
                note(f"  {name} failed: {error}")
                record.failures += 1
                record.error = None if tries_left else str(error)

    def time(self, name: str, cell: Cell, record: Record) -> str:
        result = self.run(name, cell, sampled=False).result
        record.first_loss, record.parameters = result["losses"][0], result["parameters"]
        record.transport = result.get("transport")
        record.seconds.append(median(result["step_seconds"]))
        return f"{record.seconds[-1]:.3f} s"

    def weigh(self, name: str, cell: Cell, record: Record) -> str:
        outcome = self.run(name, cell, sampled=True)
        record.first_loss, record.parameters = outcome.result["losses"][0], outcome.result["parameters"]
        record.peak_bytes = outcome.peak_over_base()
        record.ledger_bytes = max(outcome.result.get("ledger_peak", []), default=None)
        return f"{record.peak_bytes >> 20} MiB"

    def grow(self, name: str, cell: Cell, record: Record) -> str:
        steps = self.options.growth
        command = [*self.command(name, cell), f"--growth={steps}"]
        timeout = self.options.timeout + steps * SECONDS_OF_A_STEP
        record.growth_percent = processes.measure(command, self.variables, timeout, key="GROWTH").result["percent"]
        return f"{record.growth_percent:+.2f} % over {steps} steps"

    def in_turn(self, cell: Cell, records: Records, shift: int, work: Callable[[str, Cell, Record], str]) -> None:
        names = list(records)
        for name in names[shift:] + names[:shift]:
            self.attempt(name, cell, records[name], lambda: work(name, cell, records[name]))
            compare_work(cell, records)

    def measure(self, cell: Cell) -> Records:
        records = {name: Record() for name in self.options.only}
        rounds = self.options.rounds
        for round_ in range(rounds):
            note(f"{cell}, round {round_ + 1} of {rounds}")
            self.in_turn(cell, records, round_ * len(records) // rounds, self.time)
        if self.options.memory:
            note(f"{cell}, memory")
            self.in_turn(cell, records, 0, self.weigh)
        if self.options.growth and "ours_zero3" in records:
            note(f"{cell}, growth")
            record = records["ours_zero3"]
            self.attempt("ours_zero3", cell, record, lambda: self.grow("ours_zero3", cell, record))
        return records


def compare_work(cell: Cell, records: Records) -> None:
    """First-step losses are functions of weights and data alone: contenders that differ do different work."""
    losses = {name: record.first_loss for name, record in records.items() if record.first_loss is not None}
    if not losses:
        return
    reference = next(iter(losses.values()))
    if any(not abs(loss - reference) <= TOLERANCE[cell.dtype] * abs(reference) for loss in losses.values()):
        every = ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items())
        raise SystemExit(f"{cell}: contenders do different work, their first losses are {every}")


def names_in(known: list[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
        return [name for name in known if name in names]

    return parse


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", type=names_in(PEERS + OURS), default=PEERS + OURS, help="contenders, with commas between")
    add("--shapes", type=names_in(list(SHAPES)), default=list(SHAPES), help="deep, wide, batch1")
    add("--worlds", type=lambda text: [int(word) for word in text.split(",")], default=[2, 4], help="ranks: 2,4")
    add("--dtypes", type=names_in(list(TOLERANCE)), default=list(TOLERANCE), help="fp32, bf16")
    add("--rounds", type=int, default=5, help="0: no times")
    add("--steps", type=int, default=5, help="measured steps of a run")
    add("--warmup", type=int, default=2, help="steps before them")
    add("--quick", action="store_true", help="one round of two steps, to see that everything works")
    add("--memory", action=argparse.BooleanOptionalAction, default=True, help="measure memory")
    add("--growth", type=int, default=0, metavar="STEPS", help="also train zero3 that long and watch its memory")
    add("--timeout", type=float, default=300, help="seconds that a run may take")
    add("--json", type=Path, help="also write everything to this file, beside cells that it holds from before")
    add("--ours", type=Path, default=ROOT / "build/release/bench/peers_ours")
    add("--zero", type=Path, default=ROOT / "build/release/zero")
    add("--venv", type=Path, default=ROOT / "build/peers-venv", help="of the peers; made if missing")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.warmup = 1, 2, 1
    return options


def check_programs(options: argparse.Namespace) -> None:
    if not set(options.only) & set(OURS):
        return
    for program in (options.ours, options.zero):
        if not program.is_file():
            raise SystemExit(f"{program} is missing: build the targets peers_ours and zero_cli, or name it")


def document(options: argparse.Namespace, cell: Cell, records: Records) -> dict[str, Any]:
    return {
        **asdict(cell),
        "command": sys.argv,
        "rounds": options.rounds,
        "steps": options.steps,
        "warmup": options.warmup,
        "sizes": SHAPES[cell.shape],
        "contenders": {name: asdict(record) for name, record in records.items()},
        "acceptance": [{**asdict(check), "verdict": check.verdict} for check in checks(options, cell, records)],
    }


def checks(options: argparse.Namespace, cell: Cell, records: Records) -> list[Check]:
    return acceptance(cell, records, options.memory)


def write(options: argparse.Namespace, cells: dict[Cell, Records]) -> None:
    """Cells of earlier runs that were not measured again stay in the file."""
    earlier = json.loads(options.json.read_text())["cells"] if options.json.is_file() else []
    kept = [old for old in earlier if Cell(old["shape"], old["world"], old["dtype"]) not in cells]
    results = {
        "machine": environment.machine(),
        "versions": environment.versions(options.venv),
        "cells": kept + [document(options, cell, records) for cell, records in cells.items()],
    }
    options.json.write_text(json.dumps(results, indent=1) + "\n")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run.py: ended by SIGTERM"))
    options = parse()
    check_programs(options)
    environment.prepare(options.venv)
    bench, cells = Bench(options), dict[Cell, Records]()
    for cell in [Cell(s, w, d) for s in options.shapes for w in options.worlds for d in options.dtypes]:
        cells[cell] = bench.measure(cell)
        print(table(cell, cells[cell]), *checks(options, cell, cells[cell]), "", sep="\n", flush=True)
        if options.json:
            write(options, cells)
    return int(any(records[name].error for records in cells.values() for name in records if name in OURS))


if __name__ == "__main__":
    sys.exit(main())

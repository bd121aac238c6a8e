#!/usr/bin/env python3
"""Times collectives of several libraries in turn and prints a table in the manner of nccl-tests.

Bytes are those of the whole (what all_gather writes, reduce_scatter reads) on one rank. Algorithm bandwidth is bytes
over time; bus bandwidth is that times the share of the bytes that a rank has to exchange with others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator

SHARED, OVER_TCP, OVER_GLOO = "shared memory", "ours over TCP", "ours over Gloo"
GLOO, MPI, COPY = "Gloo (c10d)", "Open MPI", "copy"
LARGEST = 64 << 20
MPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclasses.dataclass(frozen=True, order=True)
class Row:
    """What was timed; its figure is in seconds."""

    ranks: int
    operation: str
    dtype: str
    bytes: int

    def bus_share(self) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        exchanged = (self.ranks - 1) / self.ranks
        return 2 * exchanged if self.operation == "all_reduce" else exchanged


@dataclasses.dataclass(frozen=True)
class Contender:
    """A library: the command that a launcher starts, and what it needs in the environment."""

    launcher: list[str]
    program: list[str]
    environment: dict[str, str]

    def run(self, ranks: int) -> Iterator[tuple[Row, float]]:
        command = [*self.launcher, "-n", str(ranks), *self.program]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        for line in result.stdout.splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                yield Row(ranks, row["operation"], row["dtype"], row["bytes"]), row["seconds"]


Figures = dict[str, dict[Row, list[float]]]  # by contender: a figure for each round


def contenders(build: pathlib.Path) -> dict[str, Contender]:
    """Those that were built, in the order of the table."""
    program = str(build / "bench" / "collectives")
    mpi_program = build / "bench" / "mpi_collectives"

    def ours(which: str, transport: str) -> Contender:
        launcher = [str(build / "zero"), "launch", "--no-prefix"]
        return Contender(launcher, [program, which], {"ZERO_TRANSPORT": transport})

    found = {SHARED: ours("zero", "auto"), OVER_TCP: ours("zero", "tcp"), OVER_GLOO: ours("zero", "gloo")}
    found[GLOO] = ours("c10d", "gloo")
    if mpi_program.exists() and shutil.which("mpirun"):
        found[MPI] = Contender(["mpirun", "--oversubscribe"], [str(mpi_program)], MPI_ENVIRONMENT)
    else:
        print("without Open MPI: mpi_collectives was not built, or there is no mpirun", file=sys.stderr)
    return {**found, COPY: ours("copy", "auto")}


def measure(build: pathlib.Path, ranks: list[int], rounds: int) -> Figures:
    """All contenders take their turns in every round, so that a machine that changes its speed changes it for all."""
    players = contenders(build)
    figures: Figures = {name: {} for name in players}
    for number in range(rounds):
        for count in ranks:
            for name, contender in players.items():
                print(f"round {number + 1} of {rounds}: {count} ranks, {name}", file=sys.stderr)
                for row, seconds in contender.run(count):
                    figures[name].setdefault(row, []).append(seconds)
    return figures


def text_of_bytes(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def table(figures: Figures) -> Iterator[str]:
    """A line for each operation, size and contender."""
    yield "| ranks | operation | dtype | bytes | | microseconds | algorithm GB/s | bus GB/s |"
    yield "|---|---|---|---|---|---|---|---|"
    rows = {row for of_contender in figures.values() for row in of_contender if row.operation != "copy"}
    for row in sorted(rows):
        for name, of_contender in figures.items():
            if row not in of_contender:
                continue
            seconds = statistics.median(of_contender[row])
            bandwidth = 1e-9 * row.bytes / seconds
            yield (
                f"| {row.ranks} | {row.operation} | {row.dtype} | {text_of_bytes(row.bytes)} | {name} "
                f"| {1e6 * seconds:.1f} | {bandwidth:.2f} | {bandwidth * row.bus_share():.2f} |"
            )


def copy_bandwidths(figures: Figures, ranks: int) -> list[float]:
    """Bytes a second read and written by all ranks together, round by round."""
    row = Row(ranks, "copy", "fp32", LARGEST)
    return [2 * row.bytes * ranks / seconds for seconds in figures[COPY].get(row, [])]


def ratios(slow: list[float], fast: list[float]) -> list[float]:
    return [a / b for a, b in zip(slow, fast)]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A median over the rounds and the bound that it must keep; no values where nothing was measured."""

    text: str
    values: list[float]
    bound: float
    at_least: bool = True

    def verdict(self) -> str:
        limit = f"{'at least' if self.at_least else 'at most'} {self.bound:g}"
        if not self.values:
            return f"NONE  {self.text}: not measured, {limit}"
        value = statistics.median(self.values)
        kept = value >= self.bound if self.at_least else value <= self.bound
        return f"{'PASS' if kept else 'FAIL'}  {self.text}: {value:.2f}, {limit}"


def claims(figures: Figures) -> Iterator[Claim]:
    """What the project promises of its collectives."""

    def of(name: str, row: Row) -> list[float]:
        return figures.get(name, {}).get(row, [])

    single, half = (Row(4, "reduce_scatter", dtype, LARGEST) for dtype in ("fp32", "bf16"))
    what = "reduce_scatter of 64 MiB at 4 ranks"
    yield Claim(f"{what}, fp32: times as fast as Gloo", ratios(of(GLOO, single), of(SHARED, single)), 10)
    yield Claim(f"{what}, fp32: times as fast as Open MPI", ratios(of(MPI, single), of(SHARED, single)), 4)
    yield Claim(f"{what}, bf16: times as fast as Gloo", ratios(of(GLOO, half), of(SHARED, half)), 10)
    # Each rank reads a slice of every rank's and writes one: N wholes read, one written.
    allowed = [(single.ranks + 1) * single.bytes / speed for speed in copy_bandwidths(figures, single.ranks)]
    text = f"{what}, fp32: time over what the copy bandwidth allows"
    yield Claim(text, ratios(of(SHARED, single), allowed), 1.5, at_least=False)
    for size in sorted(row.bytes for row in figures[SHARED] if row.ranks == 2 and row.operation == "resident_gather"):
        times = of(SHARED, Row(2, "resident_gather", "fp32", size))
        text = f"gather of {text_of_bytes(size)} resident at 2 ranks: microseconds"
        yield Claim(text, [1e6 * seconds for seconds in times], 50, at_least=False)


def as_json(figures: Figures) -> list[dict[str, object]]:
    return [
        {"contender": name, **dataclasses.asdict(row), "seconds": seconds}
        for name, of_contender in figures.items()
        for row, seconds in of_contender.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"), help="the build folder")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="where all figures go")
    options = parser.parse_args()

    figures = measure(options.build, options.ranks, options.rounds)
    if options.json:
        options.json.write_text(json.dumps(as_json(figures), indent=1) + "\n")
    print(f"medians of {options.rounds} rounds\n", *table(figures), "", sep="\n")
    for ranks in options.ranks:
        if speeds := copy_bandwidths(figures, ranks):
            print(f"{ranks} ranks copying at once read and write {1e-9 * statistics.median(speeds):.1f} GB/s")
    verdicts = [claim.verdict() for claim in claims(figures)]
    print("", *verdicts, sep="\n")
    return any(verdict.startswith("FAIL") for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())

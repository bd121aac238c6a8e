"""What the rounds say: records, ratios round by round, tables, and the lines to be met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

MIB = 1 << 20
BASELINE = "ddp"


@dataclass
class Record:
    """One contender in one cell. A contender with an error has no further rounds."""

    seconds: list[float] = field(default_factory=list)  # of each round, the run's median step
    first_loss: float | None = None
    parameters: int | None = None
    transport: str | None = None
    peak_bytes: int | None = None
    ledger_bytes: int | None = None
    growth_percent: float | None = None
    failures: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Cell:
    shape: str
    world: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.shape}, {self.world} ranks, {self.dtype}"


Records = dict[str, Record]


def ratio(records: Records, name: str, other: str) -> float | None:
    """Median of the ratios round by round."""
    ratios = [a / b for a, b in zip(records[name].seconds, records[other].seconds)]
    return median(ratios) if ratios else None


def memory_ratio(bytes_: int | None, other: int | None) -> float | None:
    return bytes_ / other if bytes_ and other else None


@dataclass(frozen=True)
class Check:
    """A line to be met: at most `limit`."""

    what: str
    limit: float
    value: float | None

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "NO FIGURE"
        return "PASS" if self.value <= self.limit else "FAIL"

    def __str__(self) -> str:
        value = "none" if self.value is None else f"{self.value:.3f}"
        return f"{self.verdict:9} {self.what}: {value}, at most {self.limit}"


def time_limits(world: int, ours: list[str]) -> Iterator[tuple[str, str, float]]:
    for name in ours:
        yield name, BASELINE, 1.05
    yield "ours_zero3", "ours_ddp", 1.05
    if world == 4:
        yield "ours_zero3", "fsdp2", 0.65
        yield "ours_zero3", "deepspeed3", 0.5


def time_checks(cell: Cell, records: Records) -> Iterator[Check]:
    ours = [name for name in records if name.startswith("ours_")]
    for name, other, limit in time_limits(cell.world, ours):
        if name in records and other in records:
            yield Check(f"{cell}: step of {name} over {other}", limit, ratio(records, name, other))


def memory_checks(cell: Cell, records: Records) -> Iterator[Check]:
    zero3 = records.get("ours_zero3")
    if cell.world != 4 or not zero3:
        return
    value = memory_ratio(zero3.peak_bytes, zero3.ledger_bytes)
    yield Check(f"{cell}: peak of ours_zero3 over its ledger's", 1.10, value)
    if fsdp2 := records.get("fsdp2"):
        value = memory_ratio(zero3.peak_bytes, fsdp2.peak_bytes)
        yield Check(f"{cell}: peak of ours_zero3 over fsdp2", 0.5, value)


def growth_checks(cell: Cell, records: Records) -> Iterator[Check]:
    for name, record in records.items():
        if record.growth_percent is not None:
            yield Check(f"{cell}: growth of {name} in percent", 1.0, record.growth_percent)


def acceptance(cell: Cell, records: Records, memory: bool) -> list[Check]:
    """Of the contenders that took part; memory only when it was measured."""
    checks = list(time_checks(cell, records)) if any(r.seconds for r in records.values()) else []
    if memory:
        checks += memory_checks(cell, records)
    return [*checks, *growth_checks(cell, records)]


def mib(bytes_: int | None) -> str:
    return "" if bytes_ is None else f"{bytes_ / MIB:.0f}"


def row(name: str, records: Records) -> str:
    record = records[name]
    if record.error:
        return f"| {name} | failed: {record.error.replace('|', '/')} | | | | |"
    step = spread = against = ""
    if record.seconds:
        step = f"{median(record.seconds):.3f}"
        spread = f"{min(record.seconds):.3f} to {max(record.seconds):.3f}"
        value = ratio(records, name, BASELINE) if BASELINE in records else None
        against = "" if value is None else f"{value:.2f}"
    if record.failures:
        name += f" ({record.failures} failed runs repeated)"
    return f"| {name} | {step} | {spread} | {against} | {mib(record.peak_bytes)} | {mib(record.ledger_bytes)} |"


def table(cell: Cell, records: Records) -> str:
    parameters = next((record.parameters for record in records.values() if record.parameters), 0)
    lines = [
        f"### {cell}, {parameters / 1e6:.1f} M parameters",
        "",
        "| contender | step, s | lowest to highest | over DDP | peak, MiB | ledger's peak, MiB |",
        "|---|---|---|---|---|---|",
        *(row(name, records) for name in records),
    ]
    return "\n".join(lines) + "\n"

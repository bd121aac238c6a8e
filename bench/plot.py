#!/usr/bin/env python3
"""Draws peers-time.svg and peers-memory.svg from what bench/peers/run.py wrote with --json."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LABELS = {
    "ours_ddp": "libzero ddp",
    "ours_zero1": "libzero zero1",
    "ours_zero2": "libzero zero2",
    "ours_zero3": "libzero zero3",
    "ddp": "PyTorch DDP",
    "zero_redundancy": "PyTorch ZeroRedundancy",
    "fsdp2_no_reshard": "PyTorch FSDP2, no reshard",
    "fsdp2": "PyTorch FSDP2",
    "deepspeed1": "DeepSpeed ZeRO-1",
    "deepspeed2": "DeepSpeed ZeRO-2",
    "deepspeed3": "DeepSpeed ZeRO-3",
}
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 800, 206, 94, 62, 14
ROW, BAR, GAP = 28, 18, 14  # pixels from bar to bar, of a bar, between the groups
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 16px; font-weight: 600 }
  .note { fill: #59636e }
  .ours { fill: #0969da }
  .peer { fill: #b4bcc6 }
  .strong { font-weight: 600 }
  .axis, .spread { stroke: #59636e; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .note { fill: #9198a1 }
    .ours { fill: #4493f8 }
    .peer { fill: #59636e }
    .axis, .spread { stroke: #9198a1 }
  }
"""


@dataclass(frozen=True)
class Bar:
    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    instead: str = ""  # of a value

    @property
    def ours(self) -> bool:
        return self.name.startswith("ours_")


@dataclass(frozen=True)
class Chart:
    title: str
    note: str
    bars: list[Bar]
    label: Callable[[float], str]

    def scale(self) -> float:
        """Pixels of one unit."""
        longest = max((bar.high or bar.value or 0 for bar in self.bars), default=0)
        return (WIDTH - LEFT - RIGHT) / (longest or 1)

    def tops(self) -> list[float]:
        """Of every row; a gap sets ours apart."""
        return [TOP + i * ROW + GAP * (not bar.ours) for i, bar in enumerate(self.bars)]

    def svg(self) -> str:
        height = TOP + len(self.bars) * ROW + GAP + BOTTOM
        rows = "".join(draw(bar, top, self) for bar, top in zip(self.bars, self.tops()))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img" aria-label="{escape(self.title)}">\n'
            f"<style>{STYLE}</style>\n"
            f'<text class="title" x="16" y="26">{escape(self.title)}</text>\n'
            f'<text class="note" x="16" y="46">{escape(self.note)}</text>\n{rows}'
            f'<line class="axis" x1="{LEFT}" y1="{TOP - 4}" x2="{LEFT}" y2="{height - BOTTOM}"/>\n</svg>\n'
        )


def text(x: float, middle: float, content: str, style: str, attributes: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{middle + 4.5:.1f}"{attributes}>{escape(content)}</text>\n'


def draw(bar: Bar, top: float, chart: Chart) -> str:
    middle, style, fill = top + BAR / 2, "strong" if bar.ours else "plain", "ours" if bar.ours else "peer"
    name = text(LEFT - 10, middle, LABELS[bar.name], style, ' text-anchor="end"')
    if bar.value is None:
        return name + text(LEFT + 8, middle, bar.instead, "note")
    scale = chart.scale()
    end = LEFT + (bar.high or bar.value) * scale
    length = f"{bar.value * scale:.1f}"
    rectangle = f'<rect class="{fill}" x="{LEFT}" y="{top}" width="{length}" height="{BAR}" rx="2"/>\n'
    return name + rectangle + whisker(bar, middle, scale) + text(end + 8, middle, chart.label(bar.value), style)


def whisker(bar: Bar, middle: float, scale: float) -> str:
    if bar.low is None or bar.high is None or bar.low == bar.high:
        return ""
    low, high = LEFT + bar.low * scale, LEFT + bar.high * scale
    return f'<line class="spread" x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>\n'


def no_bar(name: str, record: dict[str, Any]) -> Bar:
    return Bar(name, None, instead="failed" if record["error"] else "not measured")


def time_bar(name: str, record: dict[str, Any]) -> Bar:
    seconds = record["seconds"]
    if record["error"] or not seconds:
        return no_bar(name, record)
    return Bar(name, median(seconds), min(seconds), max(seconds))


def memory_bar(name: str, record: dict[str, Any]) -> Bar:
    peak = record["peak_bytes"]
    return no_bar(name, record) if record["error"] or peak is None else Bar(name, peak / (1 << 20))


def find_cell(results: dict[str, Any], shape: str, world: int, dtype: str) -> dict[str, Any]:
    for cell in results["cells"]:
        if (cell["shape"], cell["world"], cell["dtype"]) == (shape, world, dtype):
            return cell
    raise SystemExit(f"no results of {shape}, {world} ranks, {dtype}")


def charts(results: dict[str, Any], cell: dict[str, Any]) -> dict[str, Chart]:
    records = {name: cell["contenders"][name] for name in LABELS if name in cell["contenders"]}
    parameters = next(record["parameters"] for record in records.values() if record["parameters"])
    ranks = f"{cell['world']} ranks on {results['machine']['cores']} cores"
    work = f"{parameters / 1e6:.1f} M parameters, {cell['dtype']}, {ranks}"
    spread = f"median and spread of {cell['rounds']} rounds"
    times = [time_bar(name, record) for name, record in records.items()]
    peaks = [memory_bar(name, record) for name, record in records.items()]
    return {
        "peers-time.svg": Chart("Seconds a step: less is better", f"{work}; {spread}", times, "{:.2f} s".format),
        "peers-memory.svg": Chart("Peak memory a rank: less is better", work, peaks, "{:.0f} MiB".format),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="the JSON file")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    parser.add_argument("--shape", default="deep")
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--dtype", default="fp32")
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    options.out.mkdir(parents=True, exist_ok=True)
    for name, chart in charts(results, find_cell(results, options.shape, options.world, options.dtype)).items():
        (options.out / name).write_text(chart.svg())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draws peers-time.svg and peers-memory.svg from what bench/peers/run.py wrote with --json."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite
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
        axis = f'<line class="axis" x1="{LEFT}" y1="{TOP - 4}" x2="{LEFT}" y2="{height - BOTTOM}"/>\n'
        return picture(self.title, self.note, height, rows + axis)


def picture(title: str, note: str, height: float, content: str, style: str = STYLE) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{style}</style>\n"
        f'<text class="title" x="16" y="26">{escape(title)}</text>\n'
        f'<text class="note" x="16" y="46">{escape(note)}</text>\n{content}</svg>\n'
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


CURVES_LEFT, CURVES_RIGHT, CURVES_TOP, PANEL, BETWEEN = 62, 196, 92, 250, 76
LABEL = 17  # pixels from label to label
CURVE_STYLE = """  .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round }
  .leader { fill: none; stroke-width: 0.8; opacity: 0.7 }
  .grid { stroke: #8b949e; stroke-opacity: 0.35 }
"""
Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    label: str
    values: list[float]  # of each step
    colour: str  # class of the label
    line: str  # classes of the line


@dataclass(frozen=True)
class Panel:
    """Curves over the steps, each with its label at its end; the first is drawn above the others."""

    title: str
    curves: list[Curve]
    ticks: list[float]  # from the lowest value to the highest
    scale: Callable[[float], float] = float

    def x(self, step: float) -> float:
        return CURVES_LEFT + (WIDTH - CURVES_LEFT - CURVES_RIGHT) * step / self.steps()

    def y(self, value: float) -> float:
        """From the panel's top."""
        low, high = self.scale(self.ticks[0]), self.scale(self.ticks[-1])
        return PANEL * (high - self.scale(value)) / (high - low)

    def steps(self) -> int:
        return max(len(curve.values) for curve in self.curves)

    def points(self, curve: Curve) -> list[Point]:
        return [(self.x(step), self.y(value)) for step, value in enumerate(curve.values, 1) if isfinite(value)]

    def svg(self, top: float) -> str:
        drawn = [(curve, points) for curve in self.curves if (points := self.points(curve))]
        lines = "".join(polyline(points, f"curve {curve.line}") for curve, points in reversed(drawn))
        heading = text(16, -20, self.title, "strong")
        return f'<g transform="translate(0 {top})">\n{heading}{self.axes()}{lines}{labels(drawn)}</g>\n'

    def axes(self) -> str:
        right, ticks = WIDTH - CURVES_RIGHT, [(self.y(tick), f"{tick:.4g}") for tick in self.ticks]
        grid = [f'<line class="grid" x1="{CURVES_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>\n' for y, _ in ticks]
        values = [text(CURVES_LEFT - 8, y, tick, "note", ' text-anchor="end"') for y, tick in ticks]
        steps = [(self.x(step), f"{step:g}") for step in even_ticks(0, self.steps())[:-1]]
        steps.append((right, f"step {self.steps()}"))
        below = [text(x, PANEL + 16, step, "note", ' text-anchor="middle"') for x, step in steps]
        return "".join(grid + values + below)


def panels_picture(title: str, note: str, panels: list[Panel], style: str) -> str:
    tops = [CURVES_TOP + i * (PANEL + BETWEEN) for i in range(len(panels))]
    content = "".join(panel.svg(top) for panel, top in zip(panels, tops))
    return picture(title, note, tops[-1] + PANEL + 2 * BOTTOM + 16, content, style)


def polyline(points: list[Point], style: str) -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{style}" points="{joined}"/>\n'


def labels(drawn: list[tuple[Curve, list[Point]]]) -> str:
    """At the ends of the curves, in their order, as close to them as there is room."""
    by_height = sorted(drawn, key=lambda each: each[1][-1][1])
    places = spread([points[-1][1] for _, points in by_height])
    result = ""
    for (curve, points), place in zip(by_height, places):
        x, y = points[-1]
        result += polyline([(x + 2, y), (x + 16, place), (x + 28, place)], f"leader {curve.colour}")
        result += text(x + 32, place, curve.label, curve.colour)
    return result


def spread(heights: list[float]) -> list[float]:
    """Moves ascending heights apart: down, but the last ones up where they would leave the panel."""
    places = list[float]()
    for height in heights:
        places.append(max(height, places[-1] + LABEL) if places else height)
    for below, i in enumerate(reversed(range(len(places)))):
        places[i] = min(places[i], PANEL - below * LABEL)
    return places


def limits(curves: list[Curve]) -> tuple[float, float]:
    values = [value for curve in curves for value in curve.values if isfinite(value)]
    return min(values), max(values)


def even_ticks(low: float, high: float) -> list[float]:
    """Multiples of a round number, from one at most `low` to one at least `high`."""
    most = max(high - low, 1e-3) / 7
    step = next(s for e in range(-4, 9) for s in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if s >= most)
    first, last = floor(low / step), ceil(high / step)
    return [step * i for i in range(first, max(last, first + 1) + 1)]


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

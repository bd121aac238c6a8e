"""The reports that pages are made of, and what their charts have to show."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STATES = ["parameter", "gradient", "optimizer"]
NEW = ["model", "batch", "seq", "accumulate", "optimizer", "command"]
NEW_OF_RUN = ["activation_bytes", "buffer_bytes", "peak", "wire_bytes_by_collective", "process", "seconds", "timeline"]
NEW_OF_RUN += ["predicted_step_seconds", "theory"]
FULL = json.loads((HERE / "run.json").read_text())
Report = dict[str, Any]


def changed(change: Any) -> Report:
    report = copy.deepcopy(FULL)
    change(report)
    return report


def as_before(report: Report) -> None:
    """As it was written when none of the newer members existed."""
    for name in NEW:
        del report[name]
    for run in report["runs"]:
        for name in NEW_OF_RUN:
            del run[name]


def one_run(report: Report) -> None:
    del report["runs"][:-1]


def optimizers(report: Report) -> None:
    """As `--optimizers` writes it: one plan, no common precision."""
    del report["precision"]
    del report["runs"][3:]
    for run, (optimizer, precision) in zip(report["runs"], [("adamw", "fp32"), ("adamw", "bf16"), ("lion", "fp32")]):
        run.update(plan="zero3", optimizer=optimizer, precision=precision)


def apart(report: Report) -> None:
    """Bytes that were not predicted, a prediction below the peak, losses that are not numbers and that differ."""
    zero2, zero3 = report["runs"][2:]
    zero2["state_bytes"]["gradient"]["measured"] += 256
    zero2["peak"]["predicted"] = zero2["peak"]["measured"] - 1
    zero3["losses"][2] = None
    zero3["losses"][4] += 2**-50


def uneven(report: Report) -> None:
    """The mean of the steps is as predicted, but not every step is."""
    report["runs"][1]["wire_bytes_per_step"]["uneven"] = True

def on_disk(report: Report) -> None:
    """The optimizer of one run, and gradients too of another."""
    for run, states in zip(report["runs"][2:], (["optimizer"], ["gradient", "optimizer"])):
        run["tiers"] = []
        for state in states:
            kept = run["state_bytes"][state]
            read, written = ({"predicted": each * kept["predicted"], "measured": each * kept["measured"]}
                             for each in (2, 1))
            run["tiers"].append({"tier": "disk", "state": state, "bytes": dict(kept), "read_per_step": read,
                                 "written_per_step": written, "uneven": False})


def misread(report: Report) -> None:
    """More was read than predicted."""
    on_disk(report)
    report["runs"][2]["tiers"][0]["read_per_step"]["measured"] *= 2

def last_bit(report: Report) -> None:
    report["runs"][1]["losses"][4] = math.nextafter(report["runs"][1]["losses"][4], 9)


def hostile(report: Report) -> None:
    text = "</script><script>throw 1</script><!--<script><img src=x onerror=throw(1)>"
    report["command"] = report["model"] = report["runs"][0]["plan"] = text
    report["runs"][1]["timeline"]["owners"][0] = text


def one_rank(report: Report) -> None:
    """Nothing is sent; what could not be measured is null."""
    report["ranks"] = 1
    for run in report["runs"]:
        run.update(wire_bytes_per_step={"predicted": 0, "measured": 0, "uneven": False}, wire_bytes_by_collective={})
        run.update(predicted_step_seconds=None, update_seconds=None, timeline=None, process=None, seconds=None)


def long(report: Report) -> None:
    for run in report["runs"]:
        run["losses"] = [10 / (1 + i) for i in range(3000)]
        first = run["timeline"]["samples"][0]
        run["timeline"]["samples"] = [[i * 1e-5, *first[1:]] for i in range(5000)]


def nested(report: Report) -> None:
    """What a thread does in the order in which it ends, so that what goes on within another is told before it."""
    one_run(report)
    spans = [("recompute", 0.02, 0.021), ("fetch", 0.03, 0.031), ("backward", 0.01, 0.04), ("step", 0.04, 0.05)]
    report["runs"][0]["timeline"]["activities"] = [
        {"name": name, "unit": "", "thread": "main", "begin": begin, "end": end} for name, begin, end in spans
    ]


REPORTS = {
    "full": FULL,
    "as_before": changed(as_before),
    "one_run": changed(one_run),
    "nested": changed(nested),
    "optimizers": changed(optimizers),
    "apart": changed(apart),
    "uneven": changed(uneven),
    "last_bit": changed(last_bit),
    "on_disk": changed(on_disk),
    "misread": changed(misread),
    "hostile": changed(hostile),
    "long": changed(long),
    "one_rank": changed(one_rank),
    "empty": {"ranks": 1, "parameters": 0, "runs": []},
}


def mark(run: str, series: str, part: str, value: float) -> tuple[str, str, str, float]:
    return (run, series, part, value)


def expected_state(report: Report) -> list[tuple[str, str, str, float]]:
    marks = []
    for run in report["runs"]:
        parts = {name: run["state_bytes"][name] for name in STATES}
        parts |= {"activation": run["activation_bytes"], "buffer": run["buffer_bytes"]}
        for side in ("predicted", "measured"):
            marks += [mark(run["plan"], side, name, bytes_[side]) for name, bytes_ in parts.items() if bytes_[side]]
            marks.append(mark(run["plan"], side, f"peak, {run['peak']['moment']}", run["peak"][side]))
    return marks


def expected_wire(report: Report) -> list[tuple[str, str, str, float]]:
    marks = []
    for run in report["runs"]:
        marks.append(mark(run["plan"], "predicted", "all collectives", run["wire_bytes_per_step"]["predicted"]))
        split = run["wire_bytes_by_collective"].items()
        marks += [mark(run["plan"], "measured", name.replace("_", " "), value) for name, value in split if value]
    return marks


def expected_tiers(report: Report) -> list[tuple[str, str, str, float]]:
    marks = []
    for run in report["runs"]:
        for tier in run.get("tiers", []):
            for side in ("predicted", "measured"):
                moved = tier["read_per_step"][side] + tier["written_per_step"][side]
                marks.append(mark(run["plan"], side, tier["state"], moved))
    return marks


def expected_time(report: Report) -> list[tuple[str, str, str, float]]:
    marks = []
    for run in report["runs"]:
        marks += [mark(run["plan"], "measured", name, value) for name, value in run["seconds"].items()]
        marks.append(mark(run["plan"], "measured", "predicted", run["predicted_step_seconds"]))
    return marks


def expected_process(report: Report) -> list[tuple[str, str, str, float]]:
    marks = []
    for run in report["runs"]:
        parts = [(part["name"], part["bytes"]) for part in run["process"]]
        marks += [mark(run["plan"], "measured", name, bytes_) for name, bytes_ in parts if bytes_]
        marks.append(mark(run["plan"], "measured", "the process", run["process_bytes"]))
    return marks

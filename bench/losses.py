#!/usr/bin/env python3
"""What training in narrower numbers costs: final losses under each precision and moment format, beside fp32's; or, with
--study wires, with what crosses hosts in fewer bits, beside bf16 zero3's.

Trains a model, each variant from the same seeds: precisions on one rank, wires on 4 ranks that act as 2 hosts.
Final loss: the mean over the last 50 steps. Gap: final loss over the reference's of the same seed, less one. Writes the
table into a page and draws the curves; progress goes to standard error. Exit code 1 where a variant's mean gap over the
seeds is larger than permitted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

from plot import CURVE_STYLE, ROOT, STYLE, Curve, Panel, even_ticks, limits, panels_picture

TAIL = 50  # steps that a final loss, and a point of a curve, is the mean of


@dataclass(frozen=True)
class Variant:
    label: str
    precision: str
    optimizer: str = "adamw"
    permitted: float | None = None  # percent above the reference; none: for contrast
    wires: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        return [f"--precision={self.precision}", f"--optimizer={self.optimizer}", *self.wires]


def wire(label: str, *wires: str, permitted: float | None = None) -> Variant:
    return Variant(label, "bf16", permitted=permitted, wires=wires)


# The first of a study is what the others are beside.
PRECISIONS = {
    "fp32": Variant("fp32", "fp32"),
    "bf16": Variant("bf16", "bf16", permitted=0.5),
    "fp16": Variant("fp16", "fp16", permitted=0.5),
    "fp8": Variant("fp8", "fp8", permitted=0.5),
    "fp32-8bit": Variant("fp32, 8-bit moments", "fp32", "adamw-8bit", 0.5),
    "bf16-8bit": Variant("bf16, 8-bit moments", "bf16", "adamw-8bit", 0.5),
    "bf16-sr": Variant("bf16-sr", "bf16-sr", permitted=1),
    "bf16-sr-bf16": Variant("bf16-sr, bf16 moments", "bf16-sr", "adamw-bf16", 1),
    "bf16-kahan": Variant("bf16-kahan", "bf16-kahan", permitted=1),
    "bf16-pure": Variant("bf16-pure", "bf16-pure"),
}
WIRES = {
    "zero3": wire("`zero3`"),
    "zeropp": wire("`zeropp`", "--plan=zeropp", permitted=0.3),
    "zeropp-hadamard": wire("`zeropp`, gradients in `int4-hadamard`", "--plan=zeropp", "--reduce-in=int4-hadamard"),
    "zeropp-feedback": wire("`zeropp`, errors fed back", "--plan=zeropp", "--error-feedback"),
    "sdp4bit": wire("`sdp4bit`", "--plan=sdp4bit", permitted=0.25),
    "sdp4bit-feedback": wire("`sdp4bit`, errors fed back", "--plan=sdp4bit", "--error-feedback"),
    "sdp4bit-plain": wire("`sdp4bit`, gradients in `int4`", "--plan=sdp4bit", "--reduce-in=int4"),
    "sdp4bit-int4": wire("`sdp4bit`, weights in `int4`", "--plan=sdp4bit", "--gather-in=int4"),
    "weights-int8": wire("weights in `int8`", "--gather-in=int8"),
    "weights-int4": wire("weights in `int4`", "--gather-in=int4"),
    "gradients-bf16": wire("gradients in `bf16-codes`", "--reduce-in=bf16-codes"),
    "gradients-int8": wire("gradients in `int8`", "--reduce-in=int8"),
    "gradients-int4": wire("gradients in `int4`", "--reduce-in=int4"),
}


@dataclass(frozen=True)
class Study:
    variants: dict[str, Variant]
    work: list[str]
    environment: dict[str, str]
    begin: str
    end: str
    drawn: bool

    @property
    def reference(self) -> str:
        return next(iter(self.variants))


STUDIES = {
    "precisions": Study(
        PRECISIONS,
        ["--plan=ddp", "--ranks=1"],
        {},
        "<!-- losses.py: begin -->",
        "<!-- losses.py: end -->",
        drawn=True,
    ),
    "wires": Study(
        WIRES,
        ["--plan=zero3", "--ranks=4", "--shard-ranks=2"],
        {"ZERO_RANKS_PER_HOST": "2"},
        "<!-- losses.py --study wires: begin -->",
        "<!-- losses.py --study wires: end -->",
        drawn=False,
    ),
}


def trailing(values: list[float]) -> list[float]:
    """Of each step, the mean of the steps up to it, TAIL at most; the last is the final loss."""
    return [fmean(values[max(0, i - TAIL) : i]) for i in range(1, len(values) + 1)]


@dataclass
class Result:
    name: str
    variant: Variant
    losses: list[list[float]] = field(default_factory=list)  # of each seed, of each step

    def mean_curve(self) -> list[float]:
        return [fmean(step) for step in zip(*map(trailing, self.losses))]

    def gap_curves(self, reference: Result) -> list[list[float]]:
        """Of each seed, in percent; the last points are the gaps."""
        pairs = zip(map(trailing, self.losses), map(trailing, reference.losses))
        return [[100 * (a / b - 1) for a, b in zip(ours, theirs)] for ours, theirs in pairs]

    def mean_gap_curve(self, reference: Result) -> list[float]:
        return [fmean(step) for step in zip(*self.gap_curves(reference))]

    def gaps(self, reference: Result) -> list[float]:
        return [curve[-1] for curve in self.gap_curves(reference)]

    def complaint(self, reference: Result) -> str:
        gap, permitted = fmean(self.gaps(reference)), self.variant.permitted
        if permitted is None or gap <= permitted:  # a gap that is not a number is too large
            return ""
        beside = reference.variant.label
        return f"{self.variant.label}: final loss {gap:+.2f} % from {beside}'s, {permitted} % permitted"


def note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def train(options: argparse.Namespace, variant: Variant, seed: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        own = variant.arguments()
        given = {each.split("=")[0] for each in own}
        work = [each for each in options.study.work if each.split("=")[0] not in given]
        length = [f"--steps={options.steps}", f"--warmup={options.warmup}", f"--batch={options.batch}"]
        command = [str(options.binary), "train", f"--model={options.model}", f"--seed={seed}", *work, *own, *length]
        run = subprocess.run(
            [*command, f"--json={result}"],
            env={**os.environ, **options.study.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if run.returncode:
            raise SystemExit(f"{variant.label}: {run.stderr.strip()}")
        losses = json.loads(result.read_text())["runs"][0]["losses"]
    return [math.nan if loss is None else loss for loss in losses]


def study(options: argparse.Namespace, name: str) -> Result:
    result = Result(name, options.study.variants[name])
    for seed in range(options.seeds):
        result.losses.append(train(options, result.variant, seed))
        note(f"{result.variant.label}, seed {seed}: {trailing(result.losses[-1])[-1]:.4f}")
    return result


def row(result: Result, reference: Result) -> str:
    variant, loss = result.variant, result.mean_curve()[-1]
    if result is reference:
        return f"| {variant.label} | {loss:.4f} | | | |"
    gaps = result.gaps(reference)
    permitted = "any" if variant.permitted is None else f"{variant.permitted} %"
    return f"| {variant.label} | {loss:.4f} | {fmean(gaps):+.2f} % | {max(gaps):+.2f} % | {permitted} |"


def table(results: list[Result]) -> str:
    over = f"over {results[0].variant.label}'s"
    head = [f"| variant | final loss | {over} | the worst seed's | permitted |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(row(result, results[0]) for result in results)])


def around_table(page: Path, study: Study) -> tuple[str, str]:
    """What is on the page up to the first marker and from the second on."""
    before, begin, rest = page.read_text().partition(study.begin)
    _, end, after = rest.partition(study.end)
    if not begin or not end:
        raise SystemExit(f"{page} lacks {study.begin} or, after it, {study.end}")
    return before + begin, end + after


COLOURS = {  # on a light and on a dark ground; other moments are dashed
    "fp32": ("#24292f", "#e6edf3"),
    "bf16": ("#0969da", "#58a6ff"),
    "fp16": ("#1a7f37", "#3fb950"),
    "fp8": ("#bc4c00", "#f0883e"),
    "bf16-sr": ("#8250df", "#bc8cff"),
    "bf16-kahan": ("#bf3989", "#f778ba"),
    "bf16-pure": ("#cf222e", "#ff7b72"),
}


def coloured(shade: int) -> str:
    rule = "  .{0} {{ stroke: {1} }} text.{0} {{ fill: {1}; stroke: none }}\n"
    return "".join(rule.format(precision, colours[shade]) for precision, colours in COLOURS.items())


STYLES = f"""{STYLE}
{CURVE_STYLE}  .dashed {{ stroke-dasharray: 5 3 }}
{coloured(0)}  @media (prefers-color-scheme: dark) {{
{coloured(1)}  }}
"""


def loss_ticks(low: float, high: float) -> list[float]:
    """As even_ticks, for a logarithmic scale."""
    steps = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8)
    round_ones = [step * 10.0**exponent for exponent in range(-3, 9) for step in steps]
    first = max(i for i, tick in enumerate(round_ones) if tick <= low)
    last = min(i for i, tick in enumerate(round_ones) if tick >= high)
    return round_ones[first : last + 1]


def curve(variant: Variant, values: list[float]) -> Curve:
    dashed = " dashed" if variant.optimizer != "adamw" else ""
    return Curve(variant.label, values, variant.precision, variant.precision + dashed)


def drawing(options: argparse.Namespace, results: list[Result]) -> str:
    losses = [curve(result.variant, result.mean_curve()) for result in results]
    gaps = [curve(result.variant, result.mean_gap_curve(results[0])) for result in results]
    panels = [
        Panel("Loss", losses, loss_ticks(*limits(losses)), math.log),
        Panel("Over fp32's, in percent", gaps, even_ticks(*limits(gaps))),
    ]
    seeds = "1 seed" if options.seeds == 1 else f"{options.seeds} seeds"
    caption = f"mean of the last {TAIL} steps and of {seeds}; AdamW; less is better"
    return panels_picture("Training loss by precision", caption, panels, STYLES)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--study", choices=STUDIES, default="precisions")
    names = "; ".join(", ".join(each.variants) for each in STUDIES.values())
    add("--variants", nargs="+", metavar="NAME", help=names)
    add("--model", default="micro")
    add("--steps", type=int, default=500)
    add("--batch", type=int, default=4, help="sequences of a rank")
    add("--warmup", type=int, help="steps of it; a tenth of all, unless given")
    add("--seeds", type=int, default=3, help="so many, from 0")
    add("--binary", type=Path, default=ROOT / "build/release/zero")
    add("--page", type=Path, default=ROOT / "docs/numbers.md", help="the table goes between its markers")
    add("--image", type=Path, default=ROOT / "docs/images/losses.svg")
    add("--json", type=Path, help="also write every loss to this file")
    options = parser.parse_args()
    options.warmup = options.steps // 10 if options.warmup is None else options.warmup
    options.study = STUDIES[options.study]
    known = options.study.variants
    wanted = known if options.variants is None else options.variants
    if unknown := set(wanted) - set(known):
        parser.error(f"--variants {', '.join(sorted(unknown))}: of this study are {', '.join(known)}")
    options.variants = [name for name in known if name in wanted or name == options.study.reference]
    return options


def document(options: argparse.Namespace, results: list[Result]) -> str:
    variants = {each.name: {**asdict(each.variant), "losses": each.losses} for each in results}
    work = {name: getattr(options, name) for name in ("model", "steps", "warmup", "batch", "seeds")}
    work["arguments"] = options.study.work
    return json.dumps({**work, "variants": variants}, indent=1) + "\n"


def check(options: argparse.Namespace) -> None:
    around_table(options.page, options.study)
    if not options.binary.is_file():
        raise SystemExit(f"{options.binary} is missing: build the target zero_cli, or name it")


def write(options: argparse.Namespace, results: list[Result]) -> None:
    if options.json:
        options.json.write_text(document(options, results))
    before, after = around_table(options.page, options.study)
    options.page.write_text(f"{before}\n{table(results)}\n{after}")
    if options.study.drawn:
        options.image.write_text(drawing(options, results))


def main() -> int:
    options = parse()
    check(options)
    results = [study(options, name) for name in options.variants]
    write(options, results)
    print(table(results))
    complaints = [complaint for result in results if (complaint := result.complaint(results[0]))]
    for complaint in complaints:
        note(complaint)
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())

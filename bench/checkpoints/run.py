#!/usr/bin/env python3
"""Saves and loads the same states by libzero, by PyTorch's distributed checkpoints and by torch.save.

Contenders take turns, round by round, each a run of its own with all its measurements; a figure is the median over the
rounds. Tables go to standard output, progress to standard error. Exit code 1 if a contender fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


# What DCP needs beside torch, whose own environment is left alone.
PACKAGES = ["numpy"]


def prepare(venv: Path, torch: Path) -> str:
    """An environment that sees the installed torch. Returns its Python."""
    python = venv / "bin/python"
    if not python.exists():
        note(f"installing {' '.join(PACKAGES)} into {venv}")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
        packages = next(venv.glob("lib/python*/site-packages"))
        (packages / "torch.pth").write_text(f"{torch.parent}\n")
    return str(python)


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Bench:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.values: dict[str, dict[str, list[float]]] = {"ours": defaultdict(list), "DCP": defaultdict(list)}
        self.sizes: dict[str, int] = {}

    def command(self, name: str, folder: str) -> list[str]:
        work = [f"--folder={folder}", f"--layers={self.options.layers}", f"--dim={self.options.dim}", "--rounds=2"]
        if name == "ours":
            launcher = [self.options.zero, "launch", "--no-prefix", f"-n{self.options.ranks}"]
            return [*launcher, self.options.ours, *work]
        torchrun = [self.options.python, "-m", "torch.distributed.run", "--standalone"]
        return [*torchrun, f"--nproc-per-node={self.options.ranks}", str(HERE / "dcp.py"), *work]

    def run(self, name: str) -> None:
        with tempfile.TemporaryDirectory(dir=self.options.folder) as folder:
            variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            done = subprocess.run(self.command(name, folder), env=variables, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if done.returncode != 0 or not lines:
            raise SystemExit(f"{name} failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
        # The first of each run makes files and pages that the second finds.
        for kind in ("seconds", "bytes"):
            for key, values in result[kind].items():
                self.values[name][f"{key} {kind}"].append(values[-1])
        self.sizes.update({key: value for key, value in result.items() if key.endswith("_bytes")})

    def of(self, name: str, key: str) -> float:
        return median(self.values[name][key])

    def ratio(self, above: tuple[str, str], below: tuple[str, str]) -> float:
        """Median over the rounds."""
        pairs = zip(self.values[above[0]][above[1]], self.values[below[0]][below[1]], strict=True)
        return median(a / b for a, b in pairs)

    def table(self) -> list[str]:
        mib, slice_bytes = 1 << 20, self.sizes["slice_bytes"]
        rows = ["| | libzero | DCP | torch.save |", "|---|---|---|---|"]
        for text, mine, theirs, plain in [
            ("save, s", "save seconds", "save seconds", "torch.save seconds"),
            ("load from the disk, s", "load from the disk seconds", "load from the disk seconds", ""),
            ("load from the page cache, s", "load seconds", "load seconds", "torch.load seconds"),
            ("pause of a save behind training, s", "pause seconds", "pause seconds", ""),
            ("until it is on the disk, s more", "behind seconds", "behind seconds", ""),
        ]:
            third = f"{self.of('DCP', plain):.3f}" if plain else ""
            rows.append(f"| {text} | {self.of('ours', mine):.3f} | {self.of('DCP', theirs):.3f} | {third} |")
        for text, key, plain in [("save", "save bytes", "torch.save bytes"), ("load", "load bytes", "torch.load bytes")]:
            cells = [self.of("ours", key), self.of("DCP", key), self.of("DCP", plain)]
            rows.append(f"| memory that a rank holds more at most: {text}, MiB | {' | '.join(f'{c / mib:.0f}' for c in cells)} |")
        checks = [
            ("a pause is so many copies (memcpy) of the local slice", ("ours", "pause seconds"), ("ours", "memcpy seconds")),
            (
                "the disk past the page cache takes so much of a save's time",
                ("ours", "disk, past the page cache seconds"),
                ("ours", "save seconds"),
            ),
            ("the disk through the page cache takes so much of a save's time", ("ours", "disk seconds"), ("ours", "save seconds")),
            (
                "the disk past the page cache takes so much of a save's time behind training",
                ("ours", "disk, past the page cache seconds"),
                ("ours", "behind seconds"),
            ),
            ("DCP's save takes so much longer", ("DCP", "save seconds"), ("ours", "save seconds")),
            (
                "DCP's load from the disk takes so much longer",
                ("DCP", "load from the disk seconds"),
                ("ours", "load from the disk seconds"),
            ),
            ("DCP's load from the page cache takes so much longer", ("DCP", "load seconds"), ("ours", "load seconds")),
            ("DCP's pause is so much longer", ("DCP", "pause seconds"), ("ours", "pause seconds")),
        ]
        figures = [f"- {text}: {self.ratio(above, below):.2f}" for text, above, below in checks]
        figures.append(f"- bytes on disk over those of the state: {self.sizes['checkpoint_bytes'] / self.sizes['state_bytes']:.4f}")
        size = f"{self.sizes['state_bytes'] / mib:.0f} MiB of state, {slice_bytes / mib:.0f} MiB a rank"
        return [f"{self.options.ranks} ranks, {size}, {self.options.rounds} rounds:", "", *rows, "", *figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ours", default=str(ROOT / "build/release/bench/checkpoints_ours"))
    parser.add_argument("--zero", default=str(ROOT / "build/release/zero"))
    parser.add_argument("--venv", type=Path, default=ROOT / "build/checkpoints-venv", help="of DCP, made where it is not")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that is to be measured")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    options.python = prepare(options.venv, Path((ROOT / "build/torch.prefix").read_text().strip()))
    bench = Bench(options)
    for number in range(options.rounds):
        for name in ("ours", "DCP") if number % 2 == 0 else ("DCP", "ours"):
            note(f"round {number + 1} of {options.rounds}: {name}")
            bench.run(name)
    print("\n".join(bench.table()))


if __name__ == "__main__":
    main()

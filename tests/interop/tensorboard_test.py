#!/usr/bin/env python3
"""TensorBoard reads our event files. tensorboard_test.py WRITE_EVENTS VENV [unittest's arguments]"""

from __future__ import annotations

import importlib.util
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BEGIN = 1.7e9
Scalars = dict[str, list[tuple[float, int, float]]]  # by tag: wall time, step, value


def single(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def expected() -> Scalars:
    def each(pairs: list[tuple[int, float]]) -> list[tuple[float, int, float]]:
        return [(BEGIN + step, step, single(value)) for step, value in pairs]

    steps = range(1, 101)
    return {
        "loss": each([(step, 1 / step) for step in steps]),
        "grad_norm": each([(step, 0.3 * step) for step in steps]),
        "evaluation/loss": each([(step, 2 / step) for step in steps if step % 10 == 0]),
        "bytes/wire": each([(100, 123456789)]),
    }


class EventFiles(unittest.TestCase):
    writer: str

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="zero.events.")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        subprocess.run([self.writer, folder.name], check=True)

    def read(self, folder: str) -> Scalars:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(self.folder / folder), size_guidance={"scalars": 0})
        events.Reload()
        self.assertEqual(events.file_version, 2.0)
        tags = events.Tags()["scalars"]
        return {tag: [(e.wall_time, e.step, e.value) for e in events.Scalars(tag)] for tag in tags}

    def test_of_a_run_have_every_value(self) -> None:
        self.assertEqual(self.read("run"), expected())

    def test_hold_values_at_the_edges_of_their_types(self) -> None:
        scalars = self.read("edges")
        self.assertEqual(scalars["empty/steps"], [(0.0, 0, 0.0), (1e-300, 2**63 - 1, 0.0)])
        self.assertEqual(math.copysign(1, scalars["empty/steps"][1][2]), -1)
        self.assertTrue(math.isnan(scalars["values"][0][2]))
        self.assertEqual([e[1:] for e in scalars["values"][1:]], [(2, math.inf), (3, single(1e-40)), (4, math.inf)])
        self.assertEqual(scalars["x" * 300 + " Ψ"], [(1.0, 127, 1.0)])

    def test_are_taken_apart_where_a_bit_is_wrong(self) -> None:
        """The reader does check what we compute."""
        path = next((self.folder / "run").iterdir())
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
        wire = self.read("run").get("bytes/wire")
        self.assertIsNone(wire)


def main() -> None:
    EventFiles.writer, venv = sys.argv[1], Path(sys.argv[2])
    python = venv / "bin" / "python"
    if not importlib.util.find_spec("tensorboard"):
        if not python.exists() or venv.samefile(sys.prefix):
            sys.exit(f"no tensorboard in {venv} to read event files with: scripts/setup.sh --tests")
        os.execv(python, [python, *sys.argv])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])


if __name__ == "__main__":
    main()
